// Package contract is what other modules may know of pedidos: its topic, its
// events and their data.
package contract

import (
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

// Pedido is the data of pedido.creado, and the body of POST /pedidos. In an
// event, free text is in Unicode NFC.
type Pedido struct {
	ID        string     `json:"id" required:"false" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$" patternDescription:"1 to 64 of A-Z a-z 0-9 . _ -, starting with a letter or digit" doc:"Chosen by the client, or made by the server. Two ids are the same if they are equal byte for byte: case matters."`
	Cliente   string     `json:"cliente" minLength:"1" maxLength:"100" doc:"Who orders; no control characters. Kept, compared and counted in Unicode NFC, as all free text."`
	Mercado   string     `json:"mercado" minLength:"1" maxLength:"60" doc:"The market; no control characters."`
	Tarjeta   string     `json:"tarjeta" pattern:"^[A-Za-z0-9_-]{1,64}$" patternDescription:"1 to 64 of A-Z a-z 0-9 _ -" doc:"A token from the payment gateway, never a card number."`
	Lineas    []Linea    `json:"lineas" minItems:"1" maxItems:"100" nullable:"false" doc:"In all at most 1000000000000 cents."`
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
	Ciudad       string `json:"ciudad" minLength:"1" maxLength:"100" doc:"No control characters."`
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
	MaxTotalCentimos  = 1_000_000_000_000 // of the order; what the payment gateway takes
	MaxCliente        = 100               // characters
	MaxMercado        = 60                // characters
	MaxCiudad         = 100               // characters
)

var (
	name       = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	token      = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	postalCode = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9 -]{0,9}$`)
	digits     = regexp.MustCompile(`^[0-9_-]{13,37}$`)
)

// FieldError says which field breaks which limit, and never repeats its value.
type FieldError struct {
	Field   string // 'lineas[0].cantidad'
	Message string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Message }

func wrong(field, format string, args ...any) error {
	return &FieldError{field, fmt.Sprintf(format, args...)}
}

// ValidID says whether id may be that of an order or a product.
func ValidID(id string) bool { return name.MatchString(id) }

const wantID = "expected 1 to 64 of A-Z a-z 0-9 . _ -, starting with a letter or digit"

// Validate checks every limit: a consumer must not trust who published. Its
// errors are *FieldError.
func (p Pedido) Validate() error {
	if !ValidID(p.ID) {
		return wrong("id", wantID)
	}
	if err := CheckText("cliente", p.Cliente, MaxCliente); err != nil {
		return err
	}
	if err := CheckText("mercado", p.Mercado, MaxMercado); err != nil {
		return err
	}
	if !token.MatchString(p.Tarjeta) {
		return wrong("tarjeta", "expected a token of 1 to 64 of A-Z a-z 0-9 _ -")
	}
	if isCardNumber(p.Tarjeta) {
		return wrong("tarjeta", "send the gateway's token, never a card number")
	}
	if n := len(p.Lineas); n < 1 || n > MaxLineas {
		return wrong("lineas", "expected 1 to %d lines, not %d", MaxLineas, n)
	}
	for i, l := range p.Lineas {
		if err := l.validate(fmt.Sprintf("lineas[%d].", i)); err != nil {
			return err
		}
	}
	if p.Total() > MaxTotalCentimos {
		return wrong("lineas", "expected a total of at most %d cents", int64(MaxTotalCentimos))
	}
	if d := p.Direccion; d != nil {
		if err := CheckText("direccion_entrega.ciudad", d.Ciudad, MaxCiudad); err != nil {
			return err
		}
		if !postalCode.MatchString(d.CodigoPostal) {
			return wrong("direccion_entrega.codigo_postal", "expected 1 to 10 letters, digits, spaces or hyphens")
		}
	}
	return nil
}

func (l Linea) validate(at string) error {
	switch {
	case !ValidID(l.Producto):
		return wrong(at+"producto", wantID)
	case l.Cantidad < 1 || l.Cantidad > MaxCantidad:
		return wrong(at+"cantidad", "expected 1 to %d units", MaxCantidad)
	case l.PrecioCentimos < 1 || l.PrecioCentimos > MaxPrecioCentimos:
		return wrong(at+"precio_centimos", "expected 1 to %d cents", MaxPrecioCentimos)
	}
	return nil
}

// CheckText says whether s is free text of 1 to most characters without
// control characters. Its error is a *FieldError.
func CheckText(field, s string, most int) error {
	if n := utf8.RuneCountInString(s); n < 1 || n > most || !utf8.ValidString(s) {
		return wrong(field, "expected 1 to %d characters", most)
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return wrong(field, "control characters are not allowed")
		}
	}
	return nil
}

// Total is the price of the order in cents. Within the limits of its lines it
// cannot overflow: their sum is at most 10^13.
func (p Pedido) Total() int64 {
	var total int64
	for _, l := range p.Lineas {
		total += int64(l.Cantidad) * l.PrecioCentimos
	}
	return total
}

// isCardNumber recognises a card's number by its length and its Luhn digit,
// also with separators.
func isCardNumber(s string) bool {
	if !digits.MatchString(s) {
		return false
	}
	sum, n := 0, 0
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == '-' || s[i] == '_' {
			continue
		}
		d := int(s[i] - '0')
		if n%2 == 1 {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
		n++
	}
	return n >= 13 && n <= 19 && sum%10 == 0
}

// Validate checks what consumers rely on; the reason is for people. Its errors
// are *FieldError.
func (c Cancelado) Validate() error {
	if !ValidID(c.ID) {
		return wrong("id", wantID)
	}
	return nil
}

// Validate checks what consumers rely on. Its errors are *FieldError.
func (p Pagado) Validate() error {
	switch {
	case !ValidID(p.ID):
		return wrong("id", wantID)
	case p.Importe < 1 || p.Importe > MaxTotalCentimos:
		return wrong("importe", "expected 1 to %d cents", int64(MaxTotalCentimos))
	}
	return nil
}
