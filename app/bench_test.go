package app_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/app"
	"km0/app/config"
	"km0/modules/pedidos"
	"km0/modules/pedidos/contract"
	"km0/platform/outbox"
	"km0/platform/postgres/embedded"
	"km0/platform/testbed"
)

// BenchmarkCommitToEffect measures, at a steady rate in one process, how long
// after the commit of an order its stock is deducted, by the commit times that
// PostgreSQL itself records; also while a foreign transaction that has written
// stays open for 10 s in every database. Orders have two of 1,000 products.
func BenchmarkCommitToEffect(b *testing.B) {
	for _, c := range []struct {
		name    string
		rate    int
		foreign bool
	}{{"100-a-second", 100, false}, {"200-a-second", 200, false}, {"200-a-second-beside-a-foreign-transaction", 200, true}} {
		b.Run(c.name, func(b *testing.B) { commitToEffect(b, c.rate, c.foreign) })
	}
}

const (
	benchSeconds = 12
	warmUp       = 3 // seconds: connections, plans and caches are not what is measured
)

func commitToEffect(b *testing.B, rate int, foreign bool) {
	server, err := embedded.Start(b.Context(), embedded.Config{Dir: testbed.Dir(b), Params: map[string]string{"track_commit_timestamp": "on"}})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, server.Stop(context.Background())) })
	pools := map[string]*pgxpool.Pool{}
	cfg := config.Default()
	cfg.State = testbed.Dir(b)
	cfg.HTTP.Addr, cfg.Ops.Addr = "127.0.0.1:0", "127.0.0.1:0"
	for name, dsn := range map[string]*string{
		"pedidos": &cfg.Databases.Pedidos, "inventario": &cfg.Databases.Inventario,
		"pagos": &cfg.Databases.Pagos, "bus": &cfg.Databases.Bus,
	} {
		require.NoError(b, server.CreateDatabases(b.Context(), "km0_"+name))
		*dsn = server.DSN("km0_" + name)
		pools[name] = testbed.Pool(b, *dsn)
	}
	process, err := app.Build(cfg, slog.New(slog.DiscardHandler))
	require.NoError(b, err)
	require.NoError(b, process.Start(b.Context()))
	_, err = pools["inventario"].Exec(b.Context(), `INSERT INTO stock SELECT 'p-' || n, 1000000 FROM generate_series(0, 999) n`)
	require.NoError(b, err)
	place(b, process, "W", rate, warmUp)
	if foreign {
		for _, pool := range pools {
			holdTransaction(b, pool)
		}
	}

	b.ResetTimer()
	place(b, process, "P", rate, benchSeconds)
	b.StopTimer()

	testbed.Eventually(b, 30*time.Second, func() bool {
		var n int
		require.NoError(b, pools["inventario"].QueryRow(b.Context(), `SELECT count(*) FROM descuentos WHERE estado = 'descontado'`).Scan(&n))
		return n == rate*(benchSeconds+warmUp)
	}, "every order is deducted")
	report(b, commits(b, pools["pedidos"], `SELECT pedido_id, pg_xact_commit_timestamp(xmin) FROM historial_pedido WHERE orden = 1 AND pedido_id LIKE 'P-%'`),
		commits(b, pools["inventario"], `SELECT pedido_id, pg_xact_commit_timestamp(xmin) FROM descuentos`))
	require.NoError(b, process.Stop(b.Context()))
}

// place sends orders straight to the module of the process, at a steady rate.
func place(b *testing.B, process *app.App, prefix string, rate, seconds int) {
	module := process.Module("pedidos").(*pedidos.Module)
	product := func(n int) string { return fmt.Sprint("p-", n%1000) }
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	var placing sync.WaitGroup
	for i := range rate * seconds {
		<-ticker.C
		placing.Go(func() {
			_, _, err := module.Crear(b.Context(), contract.Pedido{
				ID: prefix + "-" + outbox.NewID(), Cliente: "ana", Mercado: "girona", Tarjeta: fmt.Sprint("tok_", i),
				Lineas: []contract.Linea{
					{Producto: product(7 * i), Cantidad: 1, PrecioCentimos: 320},
					{Producto: product(7*i + 1), Cantidad: 1, PrecioCentimos: 1450},
				},
				Direccion: &contract.Direccion{Ciudad: "Girona", CodigoPostal: "17001"},
			}, "")
			if err != nil {
				b.Error(err)
			}
		})
	}
	placing.Wait()
}

// holdTransaction keeps a transaction that has written open for 10 s.
func holdTransaction(b *testing.B, pool *pgxpool.Pool) {
	tx, err := pool.Begin(b.Context())
	require.NoError(b, err)
	_, err = tx.Exec(b.Context(), `CREATE TABLE ajena (); SELECT pg_current_xact_id()`)
	require.NoError(b, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-time.After(10 * time.Second):
		case <-b.Context().Done():
		}
		_ = tx.Rollback(context.Background())
	}()
	b.Cleanup(func() { <-ended })
}

func commits(b *testing.B, pool *pgxpool.Pool, query string) map[string]time.Time {
	rows, err := pool.Query(b.Context(), query)
	require.NoError(b, err)
	defer rows.Close()
	times := map[string]time.Time{}
	for rows.Next() {
		var id string
		var at time.Time
		require.NoError(b, rows.Scan(&id, &at))
		times[id] = at
	}
	require.NoError(b, rows.Err())
	return times
}

func report(b *testing.B, ordered, deducted map[string]time.Time) {
	var delays []time.Duration
	for id, at := range ordered {
		delays = append(delays, deducted[id].Sub(at))
	}
	slices.Sort(delays)
	ms := func(q float64) float64 {
		return float64(delays[int(q*float64(len(delays)-1))].Microseconds()) / 1000
	}
	b.ReportMetric(ms(0.50), "p50-ms")
	b.ReportMetric(ms(0.99), "p99-ms")
	b.ReportMetric(ms(1), "max-ms")
	b.ReportMetric(0, "ns/op")
}
