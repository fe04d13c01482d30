package inventario

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"km0/modules/inventario/contract"
	pedidos "km0/modules/pedidos/contract"
	"km0/platform/consumer"
	"km0/platform/envelope"
)

// Consumers are what inventario does when others tell it something.
func (m *Module) Consumers() []consumer.Consumer {
	return []consumer.Consumer{
		{
			Name: "inventario.descuento_stock", Topic: pedidos.Topic,
			Handlers: map[string]consumer.Handler{pedidos.PedidoCreado: consumer.On(pedidos.VersionesCreado, m.descuentoStock)},
		},
		{
			Name: "inventario.devolucion_stock", Topic: pedidos.Topic,
			Handlers: map[string]consumer.Handler{pedidos.PedidoCancelado: consumer.On([]int{1}, m.devolucionStock)},
		},
	}
}

var errSinStock = errors.New("there is not enough stock")

// descuentoStock takes all lines of an order, or none.
func (m *Module) descuentoStock(ctx context.Context, tx pgx.Tx, _ envelope.Event, p pedidos.Pedido) error {
	hecho, _, err := m.tomar(ctx, tx, p.ID)
	if err != nil || hecho != pendiente { // done before, or cancelled first
		return err
	}
	pedidas := porProducto(p.Lineas)
	eventos, faltan, err := m.descontar(ctx, tx, p.ID, pedidas)
	if err != nil {
		return err
	}
	if len(faltan) == 0 {
		return m.anotar(ctx, tx, p.ID, descontado, pedidas, eventos...)
	}
	why := fmt.Errorf("%w: order %s wants %d of %s, there are %d", errSinStock, p.ID, faltan[0].Pedidas, faltan[0].Producto, faltan[0].Disponibles)
	return consumer.Reject("sin_stock", why, func(ctx context.Context, tx pgx.Tx) error {
		return m.rechazar(ctx, tx, p.ID, faltan)
	})
}

// rechazar runs after the deduction was rolled back: meanwhile the order may
// have been cancelled, and then nobody waits for the answer.
func (m *Module) rechazar(ctx context.Context, tx pgx.Tx, pedidoID string, faltan []contract.Falta) error {
	hecho, _, err := m.tomar(ctx, tx, pedidoID)
	if err != nil || hecho != pendiente {
		return err
	}
	return m.anotar(ctx, tx, pedidoID, rechazado, nil, insuficiente(pedidoID, faltan))
}

// devolucionStock gives back what an order took; an order that took nothing
// yet will not.
func (m *Module) devolucionStock(ctx context.Context, tx pgx.Tx, _ envelope.Event, c pedidos.Cancelado) error {
	hecho, tomadas, err := m.tomar(ctx, tx, c.ID)
	switch {
	case err != nil:
		return err
	case hecho == pendiente:
		return m.anotar(ctx, tx, c.ID, anulado, nil)
	case hecho != descontado: // given back before, or never taken
		return nil
	}
	eventos, err := m.devolver(ctx, tx, c.ID, tomadas)
	if err != nil {
		return err
	}
	return m.anotar(ctx, tx, c.ID, devuelto, tomadas, eventos...)
}
