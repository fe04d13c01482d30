// Package gateway is the payment gateway as km0 sees it: a client, and a
// simulator with a durable ledger that can decline, be away and lose answers.
//
// The contract with the gateway is what makes payments safe to repeat. A
// charge has a key; the same key with the same content gets the first answer,
// whatever became of it on the way. An annulment of a key is total: a charge
// under it is given back once, and one that has not arrived never will be.
package gateway

import "errors"

// Cobro asks for money. Tarjeta is the gateway's own token of a card; it is
// neither logged nor part of any error.
type Cobro struct {
	Clave           string `json:"-"` // the Idempotency-Key
	PedidoID        string `json:"pedido_id"`
	Tarjeta         string `json:"tarjeta"`
	ImporteCentimos int64  `json:"importe_centimos"`
}

// Recibo is the answer to a charge.
type Recibo struct {
	Ref             string `json:"ref"`
	ImporteCentimos int64  `json:"importe_centimos"`
}

// Devolucion is the answer to an annulment. ImporteCentimos is 0 if nothing
// had been charged.
type Devolucion struct {
	Ref             string `json:"ref"`
	ImporteCentimos int64  `json:"importe_centimos"`
}

// The errors of Cobrar and Anular.
var (
	ErrTarjetaRechazada = errors.New("the card was declined")
	ErrAnulado          = errors.New("the key was annulled before the charge")
	ErrClaveReutilizada = errors.New("the key was used for another charge")
	// ErrNoDisponible covers refused connections, time-outs, answers of 5xx
	// and unreadable ones. The outcome is unknown: repeat with the same key.
	ErrNoDisponible = errors.New("the payment gateway is not available")
)

// Asiento is one entry of the ledger.
type Asiento struct {
	Clave         string `json:"clave"`
	PedidoID      string `json:"pedido_id"`
	Importe       int64  `json:"importe_centimos"`
	Estado        string `json:"estado"` // cobrado, rechazado, devuelto, anulado
	Ref           string `json:"ref"`
	RefDevolucion string `json:"ref_devolucion,omitempty"`
	Tarjeta       string `json:"tarjeta"`      // masked
	Huella        []byte `json:"huella"`       // of the charge's content
	Llamadas      int    `json:"llamadas"`     // how often the charge was asked for
	Cargos        int    `json:"cargos"`       // how often money was taken: 0 or 1
	Devoluciones  int    `json:"devoluciones"` // how often it was given back: 0 or 1
}

// The states of an entry.
const (
	Cobrado   = "cobrado"
	Rechazado = "rechazado"
	Devuelto  = "devuelto"
	Anulado   = "anulado"
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
