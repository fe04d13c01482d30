// Package contract is what other modules may know of pagos: its topic, its
// events and their data.
package contract

import (
	"errors"
	"regexp"
)

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

var (
	orderID      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	errNoPedido  = errors.New("pedido_id: expected the id of an order")
	errNoImporte = errors.New("importe: expected at least 1 cent")
)

// Validate checks what consumers rely on.
func (c Confirmado) Validate() error { return check(c.PedidoID, c.Importe) }

// Validate checks what consumers rely on.
func (d Devuelto) Validate() error { return check(d.PedidoID, d.Importe) }

// Validate checks what consumers rely on.
func (r Rechazado) Validate() error { return check(r.PedidoID, 1) }

func check(pedidoID string, importe int64) error {
	switch {
	case !orderID.MatchString(pedidoID):
		return errNoPedido
	case importe < 1:
		return errNoImporte
	}
	return nil
}
