package pedidos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/migrations"
	"km0/modules/pedidos"
	"km0/modules/pedidos/contract"
	"km0/platform/outbox"
	"km0/platform/testbed"
)

const callers = 16

// BenchmarkCrear takes orders on a server that syncs every commit, beside the
// same statements sent by hand: no event builder, the payload encoded before.
// Both run in turns, so that they share the machine's good and bad moments.
func BenchmarkCrear(b *testing.B) {
	pool := testbed.Pool(b, testbed.PostgresDurable(b).Database(b,
		testbed.Plataforma(), testbed.Set{Name: "pedidos", Files: migrations.Pedidos()}))
	m := pedidos.New(pedidos.Deps{DB: pool, Outbox: outbox.New(outbox.Config{Pool: pool, Origen: "pedidos"})})
	var n atomic.Int64
	id := func() string { return fmt.Sprintf("P-bench-%d", n.Add(1)) }
	ours := func() error {
		_, _, err := m.Crear(b.Context(), order(id()), "")
		return err
	}
	payload, err := json.Marshal(order("P-bench"))
	require.NoError(b, err)
	peer := func() error { return byHand(b.Context(), pool, id(), payload) }
	for range 200 { // connections and plans
		require.NoError(b, ours())
		require.NoError(b, peer())
	}
	const round = 320
	var spentOurs, spentPeer time.Duration
	rounds := 0
	for b.Loop() {
		if rounds++; rounds%2 == 0 {
			spentOurs += together(b, round, ours)
			spentPeer += together(b, round, peer)
		} else {
			spentPeer += together(b, round, peer)
			spentOurs += together(b, round, ours)
		}
	}
	orders := float64(rounds * round)
	b.ReportMetric(orders/spentOurs.Seconds(), "orders/s")
	b.ReportMetric(orders/spentPeer.Seconds(), "by-hand/s")
	b.ReportMetric(spentPeer.Seconds()/spentOurs.Seconds(), "ratio")
}

func order(id string) contract.Pedido {
	return contract.Pedido{
		ID: id, Cliente: "ana", Mercado: "girona", Tarjeta: "tok_ana",
		Lineas: []contract.Linea{{Producto: "tomate-rosa", Cantidad: 2, PrecioCentimos: 320}, {Producto: "queso-fresco", Cantidad: 1, PrecioCentimos: 900}},
	}
}

// together runs f n times by all callers and returns how long that took.
func together(b *testing.B, n int, f func() error) time.Duration {
	var (
		left  atomic.Int64
		group sync.WaitGroup
		fail  = make(chan error, callers)
	)
	left.Store(int64(n))
	start := time.Now()
	for range callers {
		group.Go(func() {
			for left.Add(-1) >= 0 {
				if err := f(); err != nil {
					fail <- err
					return
				}
			}
		})
	}
	group.Wait()
	spent := time.Since(start)
	close(fail)
	require.NoError(b, <-fail)
	return spent
}

func byHand(ctx context.Context, pool *pgxpool.Pool, id string, payload []byte) error {
	event := outbox.NewID()
	var creado, actualizado time.Time
	batch := &pgx.Batch{}
	batch.Queue(`
		INSERT INTO pedidos (id, cliente, mercado, estado, tarjeta, total_centimos, direccion_entrega, clave_idempotencia, huella)
		VALUES ($1, $2, $3, 'creado', $4, $5, $6, $7, $8)
		RETURNING creado_en, actualizado_en`,
		id, "ana", "girona", "tok_ana", int64(1540), []byte(nil), (*string)(nil), make([]byte, 32),
	).QueryRow(func(row pgx.Row) error { return row.Scan(&creado, &actualizado) })
	batch.Queue(`
		INSERT INTO lineas_pedido (pedido_id, linea, producto, cantidad, precio_centimos)
		SELECT $1, n, p, c, e FROM unnest($2::text[], $3::int[], $4::bigint[]) WITH ORDINALITY AS l (p, c, e, n)`,
		id, []string{"tomate-rosa", "queso-fresco"}, []int32{2, 1}, []int64{320, 900})
	batch.Queue(`INSERT INTO historial_pedido (pedido_id, orden, estado) VALUES ($1, 1, 'creado')`, id)
	batch.Queue(`
		INSERT INTO outbox (id, agregado, agregado_id, tipo, version, carga, topico, cabeceras, carril)
		VALUES ($1, 'pedido', $2, 'pedido.creado', 1, $3, 'pedidos.eventos', $4, $5)`,
		event, id, payload, `{"id_evento":"`+event+`","tipo":"pedido.creado","version":"1","clave":"`+id+`"}`, int16(0))
	return pool.SendBatch(ctx, batch).Close()
}
