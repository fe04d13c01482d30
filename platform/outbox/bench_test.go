package outbox_test

import (
	"context"
	stdsql "database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/platform/bus"
	buspg "km0/platform/bus/postgres"
	"km0/platform/keyed"
	"km0/platform/outbox"
	"km0/platform/testbed"
)

const orderJSON = `{"id": "P-2026-000123", "cliente": "ana", "mercado": "girona", "tarjeta": "tok_ana", "lineas": [
	{"producto": "queso-curado", "cantidad": 2, "precio_centimos": 1450}, {"producto": "tomate-rosa", "cantidad": 3, "precio_centimos": 320}],
	"direccion_entrega": {"ciudad": "Girona", "codigo_postal": "17001"}}`

// BenchmarkRelay measures how fast a backlog of 2,000 orders' events reaches a
// PostgreSQL topic: km0, Watermill's own forwarder over watermill-sql, and the
// bare loop of claiming and marking, which publishes nothing.
func BenchmarkRelay(b *testing.B) {
	for _, backlog := range []int{20_000, 100_000} {
		b.Run(fmt.Sprintf("km0/%d", backlog), func(b *testing.B) { benchRelay(b, backlog) })
		b.Run(fmt.Sprintf("stock/%d", backlog), func(b *testing.B) { benchStock(b, backlog) })
		b.Run(fmt.Sprintf("claim-and-mark/%d", backlog), func(b *testing.B) { benchRaw(b, backlog) })
	}
}

func fill(b *testing.B, pool *pgxpool.Pool, n int) {
	b.Helper()
	lanes := make([]int16, 2000)
	for i := range lanes {
		lanes[i] = keyed.Lane(fmt.Sprint("P-", i))
	}
	_, err := pool.Exec(b.Context(), `
		INSERT INTO outbox (id, agregado, agregado_id, tipo, version, carga, topico, cabeceras, carril)
		SELECT ('01a23156-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'pedido', 'P-' || k, 'pedido.creado', 2, $2::jsonb, 'pedidos.eventos',
			json_build_object('tipo', 'pedido.creado', 'clave', 'P-' || k, 'version', '2'), ($3::int2[])[k + 1]
		FROM generate_series(0, $1 - 1) n, LATERAL (SELECT n % 2000 AS k) x ORDER BY n`, n, orderJSON, lanes)
	require.NoError(b, err)
	_, err = pool.Exec(b.Context(), `CHECKPOINT`)
	require.NoError(b, err)
}

// run is one measured run: how long until left says 0.
func run(b *testing.B, n int, left func() int) {
	b.Helper()
	start := time.Now()
	for left() > 0 {
		time.Sleep(20 * time.Millisecond)
	}
	b.ReportMetric(float64(n)/time.Since(start).Seconds(), "events/s")
}

func count(b *testing.B, pool *pgxpool.Pool, query string) func() int {
	return func() (n int) {
		require.NoError(b, pool.QueryRow(b.Context(), query).Scan(&n))
		return n
	}
}

const anyPending = `SELECT CASE WHEN EXISTS (SELECT FROM outbox WHERE publicado_en IS NULL AND apartado_en IS NULL) THEN 1 ELSE 0 END`

func benchRelay(b *testing.B, n int) {
	for b.Loop() {
		b.StopTimer()
		pool, busPool := durable(b, testbed.Plataforma()), durable(b, testbed.Bus())
		fill(b, pool, n)
		ctx, cancel := context.WithCancel(b.Context())
		claims, busClaims := claim(ctx, pool), claim(ctx, busPool)
		driver, err := buspg.Open(buspg.Config{Pool: busPool, Claims: busClaims})
		require.NoError(b, err)
		require.NoError(b, driver.Declare(ctx, bus.Topology{Subscriptions: []bus.Subscription{{Consumer: "inventario.descuento_stock", Topic: "pedidos.eventos"}}}))
		relay, err := outbox.NewRelay(outbox.RelayConfig{
			Outbox: outbox.New(outbox.Config{Pool: pool, Origen: "pedidos"}), Publisher: driver.Publisher(), Claims: claims,
		})
		require.NoError(b, err)
		b.StartTimer()
		require.NoError(b, relay.Start(ctx))
		run(b, n, count(b, pool, anyPending))
		b.StopTimer()
		require.NoError(b, relay.Stop(ctx))
		require.Equal(b, n, count(b, busPool, `SELECT count(*) FROM mensajes`)())
		require.NoError(b, driver.Close())
		cancel()
		b.StartTimer()
	}
}

func claim(ctx context.Context, pool *pgxpool.Pool) *keyed.Claims {
	claims := keyed.NewClaims(pool.Config().ConnConfig.Copy(), nil)
	go func() { _ = claims.Run(ctx) }()
	return claims
}

// benchStock is the forwarder as watermill-sql's documentation sets it up.
func benchStock(b *testing.B, n int) {
	logger := watermill.NopLogger{}
	for b.Loop() {
		b.StopTimer()
		dsn := testbed.PostgresDurable(b).Database(b)
		db, err := stdsql.Open("pgx", dsn)
		require.NoError(b, err)
		pool, err := pgxpool.New(b.Context(), dsn)
		require.NoError(b, err)
		writer, err := wsql.NewPublisher(db, wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, AutoInitializeSchema: true}, logger)
		require.NoError(b, err)
		wrapped := forwarder.NewPublisher(writer, forwarder.PublisherConfig{ForwarderTopic: "outbox"})
		for from := 0; from < n; from += 1000 {
			var messages []*message.Message
			for i := range 1000 {
				m := message.NewMessage(watermill.NewUUID(), []byte(orderJSON))
				m.Metadata.Set("clave", fmt.Sprint("P-", (from+i)%2000))
				messages = append(messages, m)
			}
			require.NoError(b, wrapped.Publish("pedidos.eventos", messages...))
		}
		sub, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
			SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
		}, logger)
		require.NoError(b, err)
		require.NoError(b, sub.SubscribeInitialize("pedidos.eventos"))
		out, err := wsql.NewPublisher(db, wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, AutoInitializeSchema: true}, logger)
		require.NoError(b, err)
		fwd, err := forwarder.NewForwarder(sub, out, logger, forwarder.Config{ForwarderTopic: "outbox"})
		require.NoError(b, err)
		_, err = pool.Exec(b.Context(), `CHECKPOINT`)
		require.NoError(b, err)
		b.StartTimer()
		go func() { _ = fwd.Run(context.Background()) }()
		run(b, n, count(b, pool, fmt.Sprintf(`SELECT %d - coalesce((SELECT last_value FROM "watermill_pedidos.eventos_offset_seq"), 0)::int`, n)))
		b.StopTimer()
		require.NoError(b, fwd.Close())
		pool.Close()
		require.NoError(b, db.Close())
		b.StartTimer()
	}
}

// benchRaw is the ceiling: the loop every relay has to run, with nothing sent.
func benchRaw(b *testing.B, n int) {
	for b.Loop() {
		b.StopTimer()
		pool := durable(b, testbed.Plataforma())
		fill(b, pool, n)
		b.StartTimer()
		run(b, n, func() int {
			tag, err := pool.Exec(b.Context(), `
				UPDATE outbox SET publicado_en = clock_timestamp() WHERE id IN (
					SELECT id FROM outbox WHERE publicado_en IS NULL AND apartado_en IS NULL
					ORDER BY posicion LIMIT 1000 FOR UPDATE SKIP LOCKED)`)
			require.NoError(b, err)
			return int(tag.RowsAffected())
		})
		b.StopTimer()
		b.StartTimer()
	}
}

// durable is a database on a server that flushes as in production.
func durable(b *testing.B, set testbed.Set) *pgxpool.Pool {
	b.Helper()
	return testbed.Pool(b, testbed.PostgresDurable(b).Database(b, set))
}
