// Package contract is what other modules may know of inventario: its topic,
// its events and their data.
package contract

import (
	"errors"
	"regexp"
)

// Topic carries the events of inventario. The key of stock.actualizado is the
// product, that of stock.insuficiente the order.
const Topic = "inventario.eventos"

// The events of inventario.
const (
	StockActualizado  = "stock.actualizado"
	StockInsuficiente = "stock.insuficiente"
)

// Actualizado is the data of stock.actualizado.
type Actualizado struct {
	Producto string `json:"producto"`
	Antes    int32  `json:"antes"`
	Despues  int32  `json:"despues"`
	Motivo   string `json:"motivo"` // 'pedido', 'cancelacion'
	PedidoID string `json:"pedido_id"`
}

// Insuficiente is the data of stock.insuficiente: nothing was deducted.
type Insuficiente struct {
	PedidoID string  `json:"pedido_id"`
	Faltan   []Falta `json:"faltan"`
}

// Falta is a product that there is not enough of, or that does not exist.
type Falta struct {
	Producto    string `json:"producto"`
	Pedidas     int64  `json:"pedidas"`
	Disponibles int32  `json:"disponibles"`
}

var orderID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Validate checks what consumers rely on.
func (i Insuficiente) Validate() error {
	if !orderID.MatchString(i.PedidoID) {
		return errors.New("pedido_id: expected the id of an order")
	}
	return nil
}
