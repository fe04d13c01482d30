package pagos

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"km0/modules/pagos/contract"
	"km0/modules/pagos/gateway"
	pedidos "km0/modules/pedidos/contract"
	"km0/platform/consumer"
	"km0/platform/envelope"
)

// pasarela are the settings of what calls the gateway: while it is down,
// payments wait instead of becoming dead letters. The breaker must open before
// a message has used up its attempts.
var pasarela = consumer.Settings{CircuitBreaker: consumer.CircuitBreaker{Failures: 3, Open: 2 * time.Second}}

// Consumers are what pagos does when others tell it something.
func (m *Module) Consumers() []consumer.Consumer {
	return []consumer.Consumer{
		{
			Name: "pagos.cobro", Topic: pedidos.Topic, Settings: pasarela,
			Handlers: map[string]consumer.Handler{pedidos.PedidoCreado: consumer.On(pedidos.VersionesCreado, m.cobro)},
		},
		{
			Name: "pagos.reembolso", Topic: pedidos.Topic, Settings: pasarela,
			Handlers: map[string]consumer.Handler{pedidos.PedidoCancelado: consumer.On([]int{1}, m.reembolso)},
		},
	}
}

// cobro charges an order. Killed between the gateway's answer and COMMIT, it
// runs again and the gateway answers the same.
func (m *Module) cobro(ctx context.Context, tx pgx.Tx, _ envelope.Event, p pedidos.Pedido) error {
	hecho, err := m.tomar(ctx, tx, p.ID)
	if err != nil || hecho.Estado != pendiente { // done before, or cancelled first
		return err
	}
	importe := p.Total()
	recibo, err := m.pasarela.Cobrar(ctx, gateway.Cobro{
		Clave: clave(p.ID), PedidoID: p.ID, Tarjeta: p.Tarjeta, ImporteCentimos: importe,
	})
	switch {
	case errors.Is(err, gateway.ErrTarjetaRechazada):
		return consumer.Reject("tarjeta_rechazada", err, func(ctx context.Context, tx pgx.Tx) error {
			return m.rechazar(ctx, tx, p.ID, importe)
		})
	case errors.Is(err, gateway.ErrAnulado): // the refund of an order cancelled meanwhile was faster
		return m.anotar(ctx, tx, Pago{PedidoID: p.ID, Importe: importe, Estado: Anulado})
	case errors.Is(err, gateway.ErrNoDisponible):
		return consumer.Transient(err)
	case errors.Is(err, context.Canceled): // the process stops; the event comes again
		return err
	case err != nil:
		return consumer.Permanent(err)
	}
	return m.anotar(ctx, tx, Pago{PedidoID: p.ID, Importe: importe, Estado: Cobrado, Ref: recibo.Ref},
		evento(contract.PagoConfirmado, p.ID, contract.Confirmado{PedidoID: p.ID, Importe: importe, Ref: recibo.Ref}))
}

// rechazar runs after the charge was rolled back: meanwhile the order may have
// been cancelled, and then nobody waits for the answer.
func (m *Module) rechazar(ctx context.Context, tx pgx.Tx, pedidoID string, importe int64) error {
	hecho, err := m.tomar(ctx, tx, pedidoID)
	if err != nil || hecho.Estado != pendiente {
		return err
	}
	return m.anotar(ctx, tx, Pago{PedidoID: pedidoID, Importe: importe, Estado: Rechazado},
		evento(contract.PagoRechazado, pedidoID, contract.Rechazado{PedidoID: pedidoID, Motivo: "tarjeta_rechazada"}))
}

// reembolso gives back what was charged. It asks the gateway even if we know
// of no charge: an answer may have been lost, and a charge may be on its way.
func (m *Module) reembolso(ctx context.Context, tx pgx.Tx, _ envelope.Event, c pedidos.Cancelado) error {
	hecho, err := m.tomar(ctx, tx, c.ID)
	if err != nil || hecho.Estado == Devuelto || hecho.Estado == Anulado || hecho.Estado == Rechazado {
		return err
	}
	devolucion, err := m.pasarela.Anular(ctx, clave(c.ID))
	switch {
	case errors.Is(err, gateway.ErrNoDisponible):
		return consumer.Transient(err)
	case errors.Is(err, context.Canceled): // the process stops; the event comes again
		return err
	case err != nil:
		return consumer.Permanent(err)
	}
	pago := Pago{PedidoID: c.ID, Importe: hecho.Importe, Estado: Anulado, Ref: hecho.Ref, RefDevolucion: devolucion.Ref}
	if devolucion.ImporteCentimos == 0 {
		return m.anotar(ctx, tx, pago)
	}
	pago.Estado, pago.Importe = Devuelto, devolucion.ImporteCentimos
	return m.anotar(ctx, tx, pago, evento(contract.PagoDevuelto, c.ID,
		contract.Devuelto{PedidoID: c.ID, Importe: devolucion.ImporteCentimos, Ref: devolucion.Ref}))
}
