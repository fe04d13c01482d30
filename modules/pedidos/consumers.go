package pedidos

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	inventario "km0/modules/inventario/contract"
	pagos "km0/modules/pagos/contract"
	"km0/platform/consumer"
	"km0/platform/envelope"
)

// Consumers are what pedidos does when others tell it something.
func (m *Module) Consumers() []consumer.Consumer {
	return []consumer.Consumer{
		{
			Name: "pedidos.confirmacion", Topic: pagos.Topic,
			Handlers: map[string]consumer.Handler{pagos.PagoConfirmado: consumer.On([]int{1}, m.confirmacion)},
		},
		{
			Name: "pedidos.rechazo_pago", Topic: pagos.Topic,
			Handlers: map[string]consumer.Handler{pagos.PagoRechazado: consumer.On([]int{1}, m.rechazoPago)},
		},
		{
			Name: "pedidos.rechazo_stock", Topic: inventario.Topic,
			Handlers: map[string]consumer.Handler{inventario.StockInsuficiente: consumer.On([]int{1}, m.rechazoStock)},
		},
	}
}

func (m *Module) confirmacion(ctx context.Context, tx pgx.Tx, _ envelope.Event, c pagos.Confirmado) error {
	return m.aplicar(ctx, tx, c.PedidoID, Pagado, "")
}

func (m *Module) rechazoPago(ctx context.Context, tx pgx.Tx, _ envelope.Event, r pagos.Rechazado) error {
	return m.aplicar(ctx, tx, r.PedidoID, Cancelado, MotivoRechazada)
}

func (m *Module) rechazoStock(ctx context.Context, tx pgx.Tx, _ envelope.Event, i inventario.Insuficiente) error {
	return m.aplicar(ctx, tx, i.PedidoID, Cancelado, MotivoSinStock)
}

// aplicar moves an order because of an event. An event of an order that does
// not exist cannot be: only an order's own events bring others about.
func (m *Module) aplicar(ctx context.Context, tx pgx.Tx, id string, a Estado, motivo string) error {
	_, err := m.cambiar(ctx, tx, id, a, motivo)
	if errors.Is(err, ErrNoExiste) {
		return consumer.Permanent(fmt.Errorf("order %.80q: %w", id, err))
	}
	return err
}
