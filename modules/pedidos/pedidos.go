// Package pedidos takes orders and follows their life.
//
//	         pago.confirmado
//	creado ───────────────────► pagado
//	  │                           │
//	  │ client, stock.insuficiente, pago.rechazado
//	  └────────► cancelado ◄──────┘
//
// What is not drawn does not happen: an event that comes late, twice or crossed
// with another changes nothing, so any number of deliveries in any order ends in
// cancelado if one of them cancels, and else in pagado.
//
// Every change of state is made under the lock of the order's row, together
// with its event and its line in the history. A cancellation and a payment may
// cross: whichever locks first wins, and a charge that comes too late is given
// back by pagos when it sees pedido.cancelado.
package pedidos

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/text/unicode/norm"

	"km0/modules/pedidos/contract"
)

// Estado is where an order stands.
type Estado string

// The states.
const (
	Creado    Estado = "creado"
	Pagado    Estado = "pagado"
	Cancelado Estado = "cancelado"
)

// transiciones is the state machine. What is missing is no error.
var transiciones = map[Estado][]Estado{
	Creado: {Pagado, Cancelado},
	Pagado: {Cancelado},
}

// Puede says whether an order in state e may go to state a.
func (e Estado) Puede(a Estado) bool {
	for _, posible := range transiciones[e] {
		if posible == a {
			return true
		}
	}
	return false
}

// The reasons of a cancellation.
const (
	MotivoCliente   = "cliente"
	MotivoSinStock  = "sin_stock"
	MotivoRechazada = "tarjeta_rechazada"
)

// Registro is an order as it stands in the database.
type Registro struct {
	contract.Pedido
	Estado       Estado
	Motivo       string // why it was cancelled, or ""
	Total        int64  // in cents
	Creado       time.Time
	Actualizado  time.Time
	Historial    []Cambio
	huella       []byte
	claveCliente *string // Idempotency-Key
}

// Cambio is one line of an order's history.
type Cambio struct {
	Estado Estado
	Motivo string
	En     time.Time
}

// The errors of this module that callers decide on.
var (
	ErrNoExiste   = errors.New("there is no such order")
	ErrOtroPedido = errors.New("another order has this id or Idempotency-Key: the content differs")
	ErrMuyGrande  = errors.New("the order is too large")
)

// canonico brings free text into the form in which it is kept, compared and
// counted: Unicode NFC, which may have more characters than what came.
func canonico(p contract.Pedido) contract.Pedido {
	p.Cliente, p.Mercado = nfc(p.Cliente), nfc(p.Mercado)
	if p.Direccion != nil {
		d := *p.Direccion
		d.Ciudad = nfc(d.Ciudad)
		p.Direccion = &d
	}
	return p
}

func nfc(s string) string { return norm.NFC.String(s) }

// huella identifies what the client asked for, apart from the id it left to
// us. It is kept with the order: a new field of contract.Pedido must leave the
// encoding of orders without it as it is (omitempty), or their repeats would
// be conflicts.
func huella(p contract.Pedido) ([]byte, error) {
	encoded, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("fingerprint of the order: %w", err)
	}
	sum := sha256.Sum256(encoded)
	return sum[:], nil
}

// enmascarada shows that there is a card, and which, to those who know it.
func enmascarada(tarjeta string) string {
	if len(tarjeta) <= 8 {
		return "****"
	}
	return strings.Repeat("*", 4) + tarjeta[len(tarjeta)-4:]
}
