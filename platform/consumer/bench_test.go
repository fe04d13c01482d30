package consumer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/platform/consumer"
	"km0/platform/envelope"
	"km0/platform/testbed"
)

const (
	workers  = 16
	products = 1000
)

// sale is what a typical handler does: two updates and one event.
func sale(ctx context.Context, tx pgx.Tx, n int, id string) error {
	for i := range 2 {
		product := (2*n + i) % products
		if _, err := tx.Exec(ctx, `UPDATE stock SET unidades = unidades - 1 WHERE producto = $1 AND unidades >= 1`, product); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, `INSERT INTO salida (id, carga) VALUES ($1, $2)`, id, `{"tipo":"stock.actualizado"}`)
	return err
}

// BenchmarkInboxConsumer compares the whole chain with its peer: the same SQL
// on the same pool, written by hand in sixteen workers. The events/s of km0
// must reach 0.8 of raw's.
func BenchmarkInboxConsumer(b *testing.B) {
	b.Run("raw", func(b *testing.B) {
		pool := benchDatabase(b)
		process := func(ctx context.Context, n int) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				e := benchEvent(n)
				tag, err := tx.Exec(ctx, `
					INSERT INTO mensajes_procesados (id_mensaje, consumidor, huella) VALUES ($1, $2, $3)
					ON CONFLICT DO NOTHING`, e.ID, name, []byte("0123456789abcdef0123456789abcdef"))
				if err != nil || tag.RowsAffected() == 0 {
					return err
				}
				return sale(ctx, tx, n, e.ID)
			})
		}
		inWorkers(b, func(n int) error { return process(context.Background(), n) })
	})
	handler := consumer.On([]int{1}, func(ctx context.Context, tx pgx.Tx, e envelope.Event, datos struct {
		N int `json:"n"`
	}) error {
		return sale(ctx, tx, datos.N, e.ID)
	})
	for what, settings := range map[string]consumer.Settings{"km0": {}, "km0 in batches": {Batch: consumer.Batch{Size: workers, Wait: 2 * time.Millisecond}}} {
		b.Run(what, func(b *testing.B) {
			r := start(b, benchDatabase(b), handler, with(settings))
			inWorkers(b, func(n int) error {
				body, err := benchEvent(n).Encode()
				if err != nil {
					return err
				}
				m := message.NewMessage(uuid.NewString(), body)
				m.Metadata.Set(envelope.HeaderClave, "P-1")
				r.feed.hand(m)
				<-m.Acked()
				return nil
			})
			require.Equal(b, b.N, r.outcomes(consumer.Procesado))
		})
	}
}

func benchDatabase(b *testing.B) *pgxpool.Pool {
	pool := testbed.Pool(b, testbed.PostgresDurable(b).Database(b, testbed.Plataforma(), testbed.Set{Name: "prueba", Files: tables}))
	_, err := pool.Exec(b.Context(), `INSERT INTO stock SELECT n, 1000000000 FROM generate_series(0, $1) n`, products-1)
	require.NoError(b, err)
	return pool
}

func benchEvent(n int) envelope.Event {
	return envelope.Event{
		ID: fmt.Sprintf("01890000-0000-7000-8000-%012d", n), Tipo: tipo, Version: 1, FechaMS: 1, Origen: "pedidos",
		Datos: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)),
	}
}

func inWorkers(b *testing.B, process func(n int) error) {
	var next atomic.Int64
	var running sync.WaitGroup
	b.ResetTimer()
	for range workers {
		running.Go(func() {
			for n := int(next.Add(1)); n <= b.N; n = int(next.Add(1)) {
				if err := process(n); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
