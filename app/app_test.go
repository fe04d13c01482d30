package app_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"km0/app"
	"km0/app/config"
	"km0/migrations"
	"km0/platform/testbed"
)

// throwAway is a configuration on databases of its own.
func throwAway(t *testing.T) config.Config {
	t.Helper()
	server := testbed.Postgres(t)
	c := config.Default()
	c.State = testbed.Dir(t)
	c.HTTP.Addr, c.Ops.Addr = "127.0.0.1:0", "127.0.0.1:0"
	c.Databases.MaxConns = 8
	c.Databases.Pedidos = server.Database(t, testbed.Plataforma(), testbed.Set{Name: "pedidos", Files: migrations.Pedidos()})
	c.Databases.Inventario = server.Database(t, testbed.Plataforma(), testbed.Set{Name: "inventario", Files: migrations.Inventario()})
	c.Databases.Pagos = server.Database(t, testbed.Plataforma(), testbed.Set{Name: "pagos", Files: migrations.Pagos()})
	c.Databases.Bus = server.Database(t, testbed.Bus())
	return c
}

// call sends a request and returns the answer with its body.
func call(t *testing.T, method, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true} // so that none of its goroutines is left
	res, err := transport.RoundTrip(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res, string(text)
}

const anOrder = `{"id":"P-1","cliente":"ana","mercado":"girona","tarjeta":"tok_ana",
	"lineas":[{"producto":"tomate-rosa","cantidad":2,"precio_centimos":320}],
	"direccion_entrega":{"ciudad":"Girona","codigo_postal":"17001"}}`

// TestAProcessServesAnOrderAndLeavesNothingRunning goes once through the whole
// of a process. It is not parallel: it counts goroutines.
func TestAProcessServesAnOrderAndLeavesNothingRunning(t *testing.T) {
	cfg := throwAway(t)
	cfg.Ops.Token = "secreto"
	running := goleak.IgnoreCurrent()
	process, err := app.Build(cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.NoError(t, process.Start(t.Context()))
	api, ops := "http://"+process.HTTPAddr(), "http://"+process.OpsAddr()

	t.Run("an order is paid, and its events carry the client's correlation", func(t *testing.T) {
		res, body := call(t, http.MethodPost, api+"/pedidos", anOrder, "X-Correlation-ID", "mi-traza.1")
		require.Equal(t, http.StatusCreated, res.StatusCode, body)
		require.Equal(t, "mi-traza.1", res.Header.Get("X-Correlation-ID"))
		testbed.Eventually(t, 20*time.Second, func() bool {
			_, body := call(t, http.MethodGet, api+"/pedidos/P-1", "")
			return strings.Contains(body, `"estado":"pagado"`)
		}, "it is paid")
		bus := testbed.Pool(t, cfg.Databases.Bus)
		testbed.Eventually(t, 20*time.Second, func() bool {
			var events int
			require.NoError(t, bus.QueryRow(t.Context(), `SELECT count(*) FROM mensajes WHERE cabeceras->>'correlation_id' = 'mi-traza.1'`).Scan(&events))
			return events == 4 // pedido.creado, stock.actualizado, pago.confirmado, pedido.pagado
		}, "every event of the order has the correlation")
		bus.Close()
	})
	t.Run("a correlation that could not be kept is replaced", func(t *testing.T) {
		for _, bad := range []string{"", "two words", strings.Repeat("x", 101), "<script>"} {
			res, _ := call(t, http.MethodGet, api+"/stock", "", "X-Correlation-ID", bad)
			require.NotEqual(t, bad, res.Header.Get("X-Correlation-ID"))
			require.Len(t, res.Header.Get("X-Correlation-ID"), 36)
		}
	})
	t.Run("the operations port wants its token and is apart from the API", func(t *testing.T) {
		for _, path := range []string{"/metrics", "/readyz", "/healthz"} {
			for _, given := range []string{"", "Bearer secret", "secreto", "Bearer secreto2"} {
				res, body := call(t, http.MethodGet, ops+path, "", "Authorization", given)
				require.Equal(t, http.StatusUnauthorized, res.StatusCode)
				require.NotContains(t, body, "secreto")
			}
			res, _ := call(t, http.MethodGet, ops+path, "", "Authorization", "Bearer secreto")
			require.Equal(t, http.StatusOK, res.StatusCode, path)
			res, _ = call(t, http.MethodGet, api+path, "", "Authorization", "Bearer secreto")
			require.Equal(t, http.StatusNotFound, res.StatusCode, path)
		}
	})
	t.Run("readiness names its parts", func(t *testing.T) {
		_, body := call(t, http.MethodGet, ops+"/readyz", "", "Authorization", "Bearer secreto")
		var ready struct{ Parts map[string]string }
		require.NoError(t, json.Unmarshal([]byte(body), &ready))
		require.Len(t, ready.Parts, 9, "the process, and a database and its lanes for the bus and each module")
	})
	t.Run("every promised metric is there", func(t *testing.T) {
		_, body := call(t, http.MethodGet, ops+"/metrics", "", "Authorization", "Bearer secreto")
		for _, name := range []string{
			`km0_outbox_pending_rows{module="inventario"} 0`, `km0_outbox_oldest_pending_seconds{module="pagos"} 0`,
			`km0_outbox_set_aside_rows{module="pedidos"} 0`,
			`km0_consumer_lag_messages{consumer="pagos.cobro"} 0`, `km0_consumer_lag_oldest_seconds{consumer="pedidos.confirmacion"} 0`,
			`km0_consumer_deliveries_total{consumer="pagos.cobro",outcome="procesado"} 1`,
			`km0_pool_connections_in_use{database="bus"}`, `km0_pool_connections_max{database="bus"} 8`,
			"go_goroutines", "process_cpu_seconds_total",
		} {
			require.Contains(t, body, name)
		}
	})

	stopping, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	require.NoError(t, process.Stop(stopping))
	_, err = net.Dial("tcp", strings.TrimPrefix(api, "http://"))
	require.Error(t, err, "nobody listens any more")
	goleak.VerifyNone(t, running)
}

func TestAProcessThatCannotStartLetsGoOfItsPorts(t *testing.T) {
	t.Parallel()
	cfg := throwAway(t)
	cfg.Databases.Pagos = testbed.With(cfg.Databases.Pagos, "dbname", "no_such_database")
	process, err := app.Build(cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.ErrorContains(t, process.Start(t.Context()), "no_such_database")
	for _, addr := range []string{process.HTTPAddr(), process.OpsAddr()} {
		l, err := net.Listen("tcp", addr)
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
}

func TestAnUnknownConsumerIsRefusedBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.HTTP.Addr, cfg.Ops.Addr = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Consumers["inventario.descuento_stok"] = cfg.Consumers["default"]
	_, err := app.Build(cfg, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "did you mean inventario.descuento_stock?")
}
