package outbox_test

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"km0/platform/outbox"
)

// An order and its event in one round trip: both are committed, or neither.
func ExampleBatch() {
	place := func(ctx context.Context, pool *pgxpool.Pool, pedidos *outbox.Outbox) error {
		batch := &pgx.Batch{}
		batch.Queue(`INSERT INTO pedidos (id, cliente) VALUES ($1, $2)`, "P-2026-000123", "ana")
		err := pedidos.Publish(ctx, outbox.Batch(batch), outbox.Event{
			Agregado: "pedido", AgregadoID: "P-2026-000123",
			Tipo: "pedido.creado", Version: 1, Topic: "pedidos.eventos",
			Datos: map[string]any{"cliente": "ana"},
		})
		if err != nil {
			return err
		}
		if err := pool.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		pedidos.Wake() // after COMMIT: the relay of this process looks at once
		return nil
	}
	_ = place
}
