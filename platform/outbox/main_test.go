package outbox_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/platform/keyed"
	"km0/platform/outbox"
	"km0/platform/testbed"
)

func TestMain(m *testing.M) {
	if os.Getenv(childOutbox) != "" {
		relayProcess()
		return
	}
	testbed.Main(m)
}

const topic = "pedidos.eventos"

// fixture is the outbox of one module on a database of its own.
type fixture struct {
	pool   *pgxpool.Pool
	outbox *outbox.Outbox
}

func newFixture(t testing.TB) fixture {
	t.Helper()
	pool := testbed.ModuleDatabase(t, "prueba", nil)
	return fixture{pool, outbox.New(outbox.Config{Pool: pool, Origen: "pedidos"})}
}

func event(key string, n int) outbox.Event {
	return outbox.Event{
		Agregado: "pedido", AgregadoID: key, Tipo: "pedido.creado", Version: 2, Topic: topic,
		Datos: map[string]any{"n": n},
	}
}

// publish commits events in one transaction.
func (f fixture) publish(t testing.TB, events ...outbox.Event) {
	t.Helper()
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	require.NoError(t, f.outbox.Publish(t.Context(), outbox.Tx(tx), events...))
	require.NoError(t, tx.Commit(t.Context()))
	f.outbox.Wake()
}

// fill writes n events of each of so many keys, event after event.
func (f fixture) fill(t testing.TB, keys, n int) {
	t.Helper()
	names, lanes := make([]string, keys), make([]int16, keys)
	for i := range keys {
		names[i] = "P-" + string(rune('a'+i%26)) + time.Duration(i).String()
		lanes[i] = keyed.Lane(names[i])
	}
	_, err := f.pool.Exec(t.Context(), `
		INSERT INTO outbox (id, agregado, agregado_id, tipo, version, carga, topico, cabeceras, carril)
		SELECT gen_random_uuid(), 'pedido', clave, 'pedido.creado', 2, jsonb_build_object('n', n), $4,
			json_build_object('clave', clave), carril
		FROM generate_series(1, $3::int) n, unnest($1::text[], $2::int2[]) k (clave, carril) ORDER BY n`,
		names, lanes, n, topic)
	require.NoError(t, err)
}

func (f fixture) count(t testing.TB, where string) (n int) {
	t.Helper()
	require.NoError(t, f.pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE `+where).Scan(&n))
	return n
}

const pending = `publicado_en IS NULL`

// claims is a session of its own, as another process would have it.
func claims(t testing.TB, pool *pgxpool.Pool) *keyed.Claims {
	t.Helper()
	c := keyed.NewClaims(pool.Config().ConnConfig.Copy(), nil)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return c
}

// relay starts a relay as another process would, and stops it with the test.
func (f fixture) relay(t testing.TB, change func(*outbox.RelayConfig)) *outbox.Relay {
	t.Helper()
	cfg := outbox.RelayConfig{Outbox: f.outbox, Claims: claims(t, f.pool)}
	change(&cfg)
	r, err := outbox.NewRelay(cfg)
	require.NoError(t, err)
	require.NoError(t, r.Start(t.Context()))
	t.Cleanup(func() { stop(t, r) })
	return r
}

func stop(t testing.TB, r *outbox.Relay) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	require.NoError(t, r.Stop(ctx))
}
