package pagos

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"km0/modules/pagos/contract"
	"km0/platform/outbox"
)

const columnas = `pedido_id, importe, estado, coalesce(ref_pasarela, ''), coalesce(ref_devolucion, ''), creado_en, actualizado_en`

func leer(row pgx.Row) (p Pago, err error) {
	return p, row.Scan(&p.PedidoID, &p.Importe, &p.Estado, &p.Ref, &p.RefDevolucion, &p.Creado, &p.Actualizado)
}

// tomar locks the payment of an order, making the row if there is none: both
// consumers take this lock first.
func (m *Module) tomar(ctx context.Context, tx pgx.Tx, pedidoID string) (Pago, error) {
	// The update that changes nothing locks the row that another transaction
	// made, after waiting for it.
	p, err := leer(tx.QueryRow(ctx, `
		INSERT INTO pagos (pedido_id, importe, estado) VALUES ($1, 0, '')
		ON CONFLICT (pedido_id) DO UPDATE SET pedido_id = excluded.pedido_id
		RETURNING `+columnas, pedidoID))
	if err != nil {
		return Pago{}, fmt.Errorf("lock the payment of order %s: %w", pedidoID, err)
	}
	return p, nil
}

// anotar notes where a payment stands, with the events of it, in one round trip.
func (m *Module) anotar(ctx context.Context, tx pgx.Tx, p Pago, eventos ...outbox.Event) error {
	b := &pgx.Batch{}
	b.Queue(`
		UPDATE pagos SET importe = $2, estado = $3, ref_pasarela = nullif($4, ''), ref_devolucion = nullif($5, ''),
			actualizado_en = clock_timestamp()
		WHERE pedido_id = $1`, p.PedidoID, p.Importe, string(p.Estado), p.Ref, p.RefDevolucion)
	if err := m.outbox.Publish(ctx, outbox.Batch(b), eventos...); err != nil {
		return err
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("note the payment of order %s: %w", p.PedidoID, err)
	}
	return nil
}

func evento(tipo, pedidoID string, datos any) outbox.Event {
	return outbox.Event{Agregado: "pago", AgregadoID: pedidoID, Tipo: tipo, Version: 1, Topic: contract.Topic, Datos: datos}
}

// Pago returns the payment of an order, or ErrNoExiste.
func (m *Module) Pago(ctx context.Context, pedidoID string) (Pago, error) {
	p, err := leer(m.db.QueryRow(ctx, `SELECT `+columnas+` FROM pagos WHERE pedido_id = $1`, pedidoID))
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Pago{}, ErrNoExiste
	case err != nil:
		return Pago{}, fmt.Errorf("read the payment of order %s: %w", pedidoID, err)
	}
	return p, nil
}
