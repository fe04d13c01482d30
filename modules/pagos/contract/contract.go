// Package contract is what other modules may know of pagos: its topic, its
// events and their data.
package contract

import "errors"

// Topic carries the events of pagos; the key is the order's id.
const Topic = "pagos.eventos"

// The events of pagos.
const (
	PagoConfirmado = "pago.confirmado"
	PagoRechazado  = "pago.rechazado"
	PagoDevuelto   = "pago.devuelto"
)

// Confirmado is the data of pago.confirmado.
type Confirmado struct {
	PedidoID string `json:"pedido_id"`
	Importe  int64  `json:"importe"` // in cents
	Ref      string `json:"ref"`     // the gateway's
}

// Rechazado is the data of pago.rechazado.
type Rechazado struct {
	PedidoID string `json:"pedido_id"`
	Motivo   string `json:"motivo"`
}

// Devuelto is the data of pago.devuelto.
type Devuelto struct {
	PedidoID string `json:"pedido_id"`
	Importe  int64  `json:"importe"` // in cents
	Ref      string `json:"ref"`     // the gateway's, of the refund
}

var errNoPedido = errors.New("pedido_id is missing")

// Validate implements what consumer.On asks for.
func (c Confirmado) Validate() error {
	if c.PedidoID == "" {
		return errNoPedido
	}
	return nil
}

// Validate implements what consumer.On asks for.
func (r Rechazado) Validate() error {
	if r.PedidoID == "" {
		return errNoPedido
	}
	return nil
}
