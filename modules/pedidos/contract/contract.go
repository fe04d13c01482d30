// Package contract is what other modules may know of pedidos: its topic, its
// events and their data.
package contract

import (
	"errors"
	"fmt"
	"regexp"
	"unicode"
	"unicode/utf8"
)

// Topic carries the events of pedidos; the key is the order's id.
const Topic = "pedidos.eventos"

// The events of pedidos.
const (
	PedidoCreado    = "pedido.creado"
	PedidoPagado    = "pedido.pagado"
	PedidoCancelado = "pedido.cancelado"
)

// VersionesCreado are the versions of pedido.creado in use: 2 has
// direccion_entrega, 1 has not.
var VersionesCreado = []int{1, 2}

// Pedido is the data of pedido.creado, and the body of POST /pedidos.
type Pedido struct {
	ID        string     `json:"id" required:"false" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$" patternDescription:"1 to 64 of A-Z a-z 0-9 . _ -, starting with a letter or digit" doc:"Chosen by the client, or made by the server. Two ids are the same if they are equal byte for byte: case matters."`
	Cliente   string     `json:"cliente" minLength:"1" maxLength:"100" doc:"Who orders; no control characters."`
	Mercado   string     `json:"mercado" minLength:"1" maxLength:"60" doc:"The market; no control characters."`
	Tarjeta   string     `json:"tarjeta" pattern:"^[A-Za-z0-9_-]{1,64}$" patternDescription:"1 to 64 of A-Z a-z 0-9 _ -" doc:"A token from the payment gateway, never a card number."`
	Lineas    []Linea    `json:"lineas" minItems:"1" maxItems:"100" nullable:"false"`
	Direccion *Direccion `json:"direccion_entrega,omitempty" required:"false"`
}

// Linea is one product of an order.
type Linea struct {
	Producto       string `json:"producto" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$" patternDescription:"1 to 64 of A-Z a-z 0-9 . _ -, starting with a letter or digit"`
	Cantidad       int32  `json:"cantidad" minimum:"1" maximum:"10000" doc:"Units."`
	PrecioCentimos int64  `json:"precio_centimos" minimum:"1" maximum:"10000000" doc:"Price of one unit, in cents."`
}

// Direccion is where the order goes.
type Direccion struct {
	Ciudad       string `json:"ciudad" minLength:"1" maxLength:"100"`
	CodigoPostal string `json:"codigo_postal" pattern:"^[A-Za-z0-9][A-Za-z0-9 -]{0,9}$" patternDescription:"1 to 10 letters, digits, spaces or hyphens"`
}

// Pagado is the data of pedido.pagado.
type Pagado struct {
	ID      string `json:"id"`
	Importe int64  `json:"importe"` // in cents
}

// Cancelado is the data of pedido.cancelado.
type Cancelado struct {
	ID     string `json:"id"`
	Motivo string `json:"motivo"` // 'cliente', 'sin_stock', 'tarjeta_rechazada'
}

// The limits of an order: the API states them, and consumers rely on them.
const (
	MaxLineas         = 100
	MaxCantidad       = 10_000
	MaxPrecioCentimos = 10_000_000
)

var (
	name       = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	token      = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	postalCode = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9 -]{0,9}$`)
	cardNumber = regexp.MustCompile(`^[0-9-]{13,23}$`)
)

// ErrCardNumber means that tarjeta is no token but a card's number. Neither
// the error nor anything else repeats it.
var ErrCardNumber = errors.New("tarjeta: send the gateway's token, never a card number")

// Validate checks every limit: a consumer must not trust who published.
func (p Pedido) Validate() error {
	if !name.MatchString(p.ID) {
		return fmt.Errorf("id %.80q: want %s", p.ID, name)
	}
	if err := text("cliente", p.Cliente, 100); err != nil {
		return err
	}
	if err := text("mercado", p.Mercado, 60); err != nil {
		return err
	}
	if !token.MatchString(p.Tarjeta) {
		return fmt.Errorf("tarjeta: want a token of the form %s", token)
	}
	if IsCardNumber(p.Tarjeta) {
		return ErrCardNumber
	}
	if n := len(p.Lineas); n < 1 || n > MaxLineas {
		return fmt.Errorf("lineas: %d of them, want 1 to %d", n, MaxLineas)
	}
	for i, l := range p.Lineas {
		if err := l.validate(); err != nil {
			return fmt.Errorf("lineas[%d].%w", i, err)
		}
	}
	if d := p.Direccion; d != nil {
		if err := text("direccion_entrega.ciudad", d.Ciudad, 100); err != nil {
			return err
		}
		if !postalCode.MatchString(d.CodigoPostal) {
			return fmt.Errorf("direccion_entrega.codigo_postal %.20q: want %s", d.CodigoPostal, postalCode)
		}
	}
	return nil
}

func (l Linea) validate() error {
	switch {
	case !name.MatchString(l.Producto):
		return fmt.Errorf("producto %.80q: want %s", l.Producto, name)
	case l.Cantidad < 1 || l.Cantidad > MaxCantidad:
		return fmt.Errorf("cantidad: %d, want 1 to %d", l.Cantidad, MaxCantidad)
	case l.PrecioCentimos < 1 || l.PrecioCentimos > MaxPrecioCentimos:
		return fmt.Errorf("precio_centimos: %d, want 1 to %d", l.PrecioCentimos, MaxPrecioCentimos)
	}
	return nil
}

func text(field, s string, most int) error {
	if n := utf8.RuneCountInString(s); n < 1 || n > most || !utf8.ValidString(s) {
		return fmt.Errorf("%s: want 1 to %d characters", field, most)
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return fmt.Errorf("%s: control characters are not allowed", field)
		}
	}
	return nil
}

// Total is the price of the order in cents. Within the limits it cannot
// overflow: at most 10^13.
func (p Pedido) Total() int64 {
	var total int64
	for _, l := range p.Lineas {
		total += int64(l.Cantidad) * l.PrecioCentimos
	}
	return total
}

// IsCardNumber recognises a card's number by its length and its Luhn digit.
func IsCardNumber(s string) bool {
	if !cardNumber.MatchString(s) {
		return false
	}
	sum, digits := 0, 0
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == '-' {
			continue
		}
		d := int(s[i] - '0')
		if digits%2 == 1 {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
		digits++
	}
	return digits >= 13 && digits <= 19 && sum%10 == 0
}

// Validate implements what consumer.On asks for.
func (c Cancelado) Validate() error {
	if !name.MatchString(c.ID) {
		return fmt.Errorf("id %.80q: want %s", c.ID, name)
	}
	return nil
}
