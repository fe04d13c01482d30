package inventario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"km0/modules/inventario/contract"
	"km0/platform/consumer"
	"km0/platform/outbox"
)

// tomar locks what was done for an order, making the row if there is none:
// both consumers take this lock first.
func (m *Module) tomar(ctx context.Context, tx pgx.Tx, pedidoID string) (hecho estado, tomadas []cantidad, err error) {
	var lineas []byte
	// The update that changes nothing locks the row that another transaction
	// made, after waiting for it.
	err = tx.QueryRow(ctx, `
		INSERT INTO descuentos (pedido_id, estado) VALUES ($1, '')
		ON CONFLICT (pedido_id) DO UPDATE SET pedido_id = excluded.pedido_id
		RETURNING estado, lineas`, pedidoID).Scan(&hecho, &lineas)
	if err != nil {
		return "", nil, fmt.Errorf("lock the deduction of order %s: %w", pedidoID, err)
	}
	if err := json.Unmarshal(lineas, &tomadas); err != nil {
		return "", nil, fmt.Errorf("read the deduction of order %s: %w", pedidoID, err)
	}
	return hecho, tomadas, nil
}

// anotar notes what was done for an order, with the events of it, in one round
// trip.
func (m *Module) anotar(ctx context.Context, tx pgx.Tx, pedidoID string, e estado, tomadas []cantidad, eventos ...outbox.Event) error {
	if tomadas == nil {
		tomadas = []cantidad{}
	}
	lineas, err := json.Marshal(tomadas)
	if err != nil {
		return fmt.Errorf("encode the deduction of order %s: %w", pedidoID, err)
	}
	b := &pgx.Batch{}
	b.Queue(`
		UPDATE descuentos SET estado = $2, lineas = $3, en = clock_timestamp() WHERE pedido_id = $1`, pedidoID, string(e), lineas)
	if err := m.outbox.Publish(ctx, outbox.Batch(b), eventos...); err != nil {
		return err
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("note the deduction of order %s: %w", pedidoID, err)
	}
	return nil
}

// descontar takes pedidas, in their order and one round trip, and makes one
// event per product. If something is missing it says what, and the caller
// rolls back.
func (m *Module) descontar(ctx context.Context, tx pgx.Tx, pedidoID string, pedidas []cantidad) (eventos []outbox.Event, faltan []contract.Falta, err error) {
	b := &pgx.Batch{}
	for _, c := range pedidas {
		b.Queue(`
			UPDATE stock SET unidades = unidades - $2 WHERE producto = $1 AND unidades >= $2 RETURNING unidades`, c.Producto, c.Unidades,
		).QueryRow(func(row pgx.Row) error {
			var despues int32
			err := row.Scan(&despues)
			switch {
			case errors.Is(err, pgx.ErrNoRows):
				faltan = append(faltan, contract.Falta{Producto: c.Producto, Pedidas: c.Unidades})
			case err != nil:
				return fmt.Errorf("%d of %s: %w", c.Unidades, c.Producto, err)
			default:
				eventos = append(eventos, actualizado(c.Producto, despues+int32(c.Unidades), despues, "pedido", pedidoID))
			}
			return nil
		})
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, nil, fmt.Errorf("deduct order %s: %w", pedidoID, err)
	}
	return eventos, faltan, m.disponibles(ctx, tx, faltan)
}

// disponibles fills in how much there is of what is missing.
func (m *Module) disponibles(ctx context.Context, tx pgx.Tx, faltan []contract.Falta) error {
	for i := range faltan {
		err := tx.QueryRow(ctx, `SELECT unidades FROM stock WHERE producto = $1`, faltan[i].Producto).Scan(&faltan[i].Disponibles)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("read the stock of %s: %w", faltan[i].Producto, err)
		}
	}
	return nil
}

// devolver gives tomadas back, in their order and one round trip.
func (m *Module) devolver(ctx context.Context, tx pgx.Tx, pedidoID string, tomadas []cantidad) (eventos []outbox.Event, err error) {
	b := &pgx.Batch{}
	for _, c := range tomadas {
		b.Queue(`
			UPDATE stock SET unidades = unidades + $2 WHERE producto = $1 RETURNING unidades`, c.Producto, c.Unidades,
		).QueryRow(func(row pgx.Row) error {
			var despues int32
			err := row.Scan(&despues)
			switch {
			case errors.Is(err, pgx.ErrNoRows): // somebody removed it since
				return consumer.Permanent(fmt.Errorf("%d of %s: %w", c.Unidades, c.Producto, ErrNoExiste))
			case err != nil:
				return fmt.Errorf("%d of %s: %w", c.Unidades, c.Producto, err)
			}
			eventos = append(eventos, actualizado(c.Producto, despues-int32(c.Unidades), despues, "cancelacion", pedidoID))
			return nil
		})
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("give the stock of order %s back: %w", pedidoID, err)
	}
	return eventos, nil
}

func actualizado(producto string, antes, despues int32, motivo, pedidoID string) outbox.Event {
	return outbox.Event{
		Agregado: "producto", AgregadoID: producto, Tipo: contract.StockActualizado, Version: 1, Topic: contract.Topic,
		Datos: contract.Actualizado{Producto: producto, Antes: antes, Despues: despues, Motivo: motivo, PedidoID: pedidoID},
	}
}

func insuficiente(pedidoID string, faltan []contract.Falta) outbox.Event {
	return outbox.Event{
		Agregado: "pedido", AgregadoID: pedidoID, Tipo: contract.StockInsuficiente, Version: 1, Topic: contract.Topic,
		Datos: contract.Insuficiente{PedidoID: pedidoID, Faltan: faltan},
	}
}

// Stock lists all products by name.
func (m *Module) Stock(ctx context.Context) ([]Stock, error) {
	rows, err := m.db.Query(ctx, `SELECT producto, unidades FROM stock ORDER BY producto`)
	if err != nil {
		return nil, fmt.Errorf("read the stock: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Stock])
	if err != nil {
		return nil, fmt.Errorf("read the stock: %w", err)
	}
	return list, nil
}

// Producto returns the stock of one product, or ErrNoExiste.
func (m *Module) Producto(ctx context.Context, producto string) (Stock, error) {
	s := Stock{Producto: producto}
	err := m.db.QueryRow(ctx, `SELECT unidades FROM stock WHERE producto = $1`, producto).Scan(&s.Unidades)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Stock{}, ErrNoExiste
	case err != nil:
		return Stock{}, fmt.Errorf("read the stock of %s: %w", producto, err)
	}
	return s, nil
}
