// Package pagos charges orders and gives the money back.
//
// The charge happens at a payment gateway, outside every transaction of ours.
// It goes under the key cobro-<order>, and the gateway answers a repeated key
// with the first result: a charge whose answer or whose COMMIT was lost is
// found again, not repeated. To give money back the key is annulled, which
// also stops a charge under it that is still on its way.
//
//	(nothing) ── pedido.creado ──► cobrado ── pedido.cancelado ──► devuelto
//	    │  └──── card declined ──► rechazado
//	    └─────── pedido.cancelado ► anulado, or devuelto if the gateway had charged
package pagos

import (
	"context"
	"errors"
	"time"

	"km0/modules/pagos/gateway"
)

// Pasarela is the payment gateway as pagos needs it; gateway.Client is one.
// Both calls may be repeated at will.
type Pasarela interface {
	Cobrar(ctx context.Context, c gateway.Cobro) (gateway.Recibo, error)
	Anular(ctx context.Context, clave string) (gateway.Devolucion, error)
}

// Estado is where a payment stands.
type Estado string

// The states.
const (
	pendiente Estado = "" // the row is new
	Cobrado   Estado = "cobrado"
	Rechazado Estado = "rechazado"
	Devuelto  Estado = "devuelto"
	Anulado   Estado = "anulado"
)

// Pago is the payment of one order.
type Pago struct {
	PedidoID      string
	Importe       int64 // in cents
	Estado        Estado
	Ref           string // the gateway's, of the charge
	RefDevolucion string // and of the refund
	Creado        time.Time
	Actualizado   time.Time
}

// ErrNoExiste means that no payment of the order was tried yet.
var ErrNoExiste = errors.New("there is no payment of this order")

func clave(pedidoID string) string { return "cobro-" + pedidoID }
