// Package inventario keeps the stock of the producers.
//
// For every order it remembers what it did, so that a deduction and its return
// each happen once, whichever of pedido.creado and pedido.cancelado is handled
// first, and however often:
//
//	(nothing) ── pedido.creado ──► descontado ── pedido.cancelado ──► devuelto
//	    │  └──── no stock ───────► rechazado
//	    └─────── pedido.cancelado ► anulado  (a later pedido.creado takes nothing)
package inventario

import (
	"errors"
	"sort"

	pedidos "km0/modules/pedidos/contract"
)

// estado is what was done for an order.
type estado string

const (
	pendiente  estado = "" // the row is new
	descontado estado = "descontado"
	devuelto   estado = "devuelto"
	rechazado  estado = "rechazado"
	anulado    estado = "anulado"
)

// Stock is how much there is of a product.
type Stock struct {
	Producto string
	Unidades int32
}

// ErrNoExiste means that there is no such product.
var ErrNoExiste = errors.New("there is no such product")

// cantidad is how much of a product an order takes.
type cantidad struct {
	Producto string `json:"producto"`
	Unidades int64  `json:"cantidad"`
}

// porProducto adds up the lines of each product and sorts them: transactions
// that lock products in one order cannot deadlock.
func porProducto(lineas []pedidos.Linea) []cantidad {
	suma := map[string]int64{}
	for _, l := range lineas {
		suma[l.Producto] += int64(l.Cantidad)
	}
	lista := make([]cantidad, 0, len(suma))
	for producto, unidades := range suma {
		lista = append(lista, cantidad{producto, unidades})
	}
	sort.Slice(lista, func(i, j int) bool { return lista[i].Producto < lista[j].Producto })
	return lista
}
