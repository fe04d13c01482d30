// Package gateway makes a payment safe to repeat: one key takes money at most
// once and gives it back at most once, however often and in whatever order it
// is asked. It has the client that pagos calls, and a simulator of the gateway
// with a durable ledger that can decline, be away and lose answers.
//
// # When it fails
//
// The caller dies, or stops waiting, before it has the answer: the charge may
// or may not have been made. Repeating it under the same key, with the same
// content, returns the first answer; it is not made again.
//
// The order is cancelled while the outcome of its charge is unknown: an
// annulment of the key is total. What was charged is given back; what was not
// will never be, since a charge that arrives later is refused (ErrAnulado).
//
// The simulator is killed: what it answered is in the ledger, synced before
// the answer left. What it had not answered is there or not, and a repetition
// finds out.
//
//	(nothing) ── charge ──► cobrado ──── annulment ──► devuelto
//	    │   └─── declined ► rechazado ── annulment ──► anulado
//	    └─────── annulment ──────────────────────────► anulado
//
// A repeated charge in devuelto still gets its first receipt: it tells what
// happened, and takes nothing.
package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
)

// Cobro asks for money. Tarjeta is the gateway's own token of a card; only the
// gateway gets to see it: printed or logged, a Cobro shows its last characters.
type Cobro struct {
	Clave           string `json:"-"`                // the Idempotency-Key: 1 to 200 visible ASCII characters
	PedidoID        string `json:"pedido_id"`        // 1 to 200 visible ASCII characters
	Tarjeta         string `json:"tarjeta"`          // 1 to 200 visible ASCII characters
	ImporteCentimos int64  `json:"importe_centimos"` // 1 to 1e12
}

// String masks the card.
func (c Cobro) String() string {
	return fmt.Sprintf("charge %s of order %s: %d cents from card %s", c.Clave, c.PedidoID, c.ImporteCentimos, mask(c.Tarjeta))
}

// GoString masks the card under %#v.
func (c Cobro) GoString() string { return c.String() }

// LogValue masks the card in logs.
func (c Cobro) LogValue() slog.Value {
	return slog.GroupValue(slog.String("clave", c.Clave), slog.String("pedido_id", c.PedidoID),
		slog.Int64("importe_centimos", c.ImporteCentimos), slog.String("tarjeta", mask(c.Tarjeta)))
}

func mask(token string) string {
	if len(token) <= 8 {
		return "****"
	}
	return "****" + token[len(token)-4:]
}

// Recibo is the answer to a charge; a repeated charge gets the same.
type Recibo struct {
	Ref             string `json:"ref"`
	ImporteCentimos int64  `json:"importe_centimos"`
}

// Devolucion is the answer to an annulment; a repeated one gets the same. If
// nothing had been charged ImporteCentimos is 0 and Ref empty.
type Devolucion struct {
	Ref             string `json:"ref"`
	ImporteCentimos int64  `json:"importe_centimos"`
}

// The errors of Cobrar and Anular, for errors.Is. All but ErrNoDisponible are
// final: a repetition gets the same.
var (
	// ErrTarjetaRechazada means that no money was taken, nor will be.
	ErrTarjetaRechazada = errors.New("the card was declined")
	// ErrAnulado means that the annulment came before the charge.
	ErrAnulado = errors.New("the key was annulled before the charge")
	// ErrClaveReutilizada means that the key belongs to a charge of another
	// order, card or amount.
	ErrClaveReutilizada = errors.New("the key was used for another charge")
	// ErrNoDisponible covers refused connections, time-outs, answers of 5xx
	// and unreadable ones. The outcome is unknown: repeat with the same key.
	ErrNoDisponible = errors.New("the payment gateway is not available")
)

// Asiento is what the ledger holds under one key.
type Asiento struct {
	Clave         string `json:"clave"`
	PedidoID      string `json:"pedido_id"` // empty if no charge came before the annulment
	Importe       int64  `json:"importe_centimos"`
	Estado        string `json:"estado"` // cobrado, rechazado, devuelto, anulado
	Ref           string `json:"ref"`
	RefDevolucion string `json:"ref_devolucion,omitempty"`
	Tarjeta       string `json:"tarjeta"`      // masked
	Llamadas      int    `json:"llamadas"`     // how often the charge was asked for, refusals included
	Cargos        int    `json:"cargos"`       // how often money was taken: 0 or 1
	Devoluciones  int    `json:"devoluciones"` // how often it was given back: 0 or 1
}

// The states of an entry.
const (
	Cobrado   = "cobrado"   // money was taken
	Rechazado = "rechazado" // the card was declined
	Devuelto  = "devuelto"  // money was taken and given back
	Anulado   = "anulado"   // no money was taken, nor will be
)

// Resumen are the totals of a ledger, in cents where money.
type Resumen struct {
	Cobros           int64 `json:"cobros"` // entries that took money, given back or not
	Rechazados       int64 `json:"rechazados"`
	Devueltos        int64 `json:"devueltos"`
	Anulados         int64 `json:"anulados"`
	ImporteCobrado   int64 `json:"importe_cobrado"`
	ImporteDevuelto  int64 `json:"importe_devuelto"`
	FallosInyectados int64 `json:"fallos_inyectados"` // since the simulator started
}

// visible is what keys, orders and tokens look like: what may stand in a
// header, in a log and in a bbolt key.
var visible = regexp.MustCompile(`^[!-~]{1,200}$`)
