package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"km0/modules/pagos/gateway"
	"km0/platform/testbed"
)

// TestADatabaseRestartNeedsNoRestartOfKm0 is case C15.
func TestADatabaseRestartNeedsNoRestartOfKm0(t *testing.T) {
	t.Parallel()
	server := testbed.PrivatePostgres(t)
	admin, err := pgx.Connect(t.Context(), server.DSN("postgres"))
	require.NoError(t, err)
	dsns := map[string]string{}
	for _, name := range names {
		_, err := admin.Exec(t.Context(), "CREATE DATABASE "+name)
		require.NoError(t, err)
		dsns[name] = server.DSN(name)
	}
	require.NoError(t, admin.Close(t.Context()))
	s := systemOn(t, dsns, gateway.Options{})
	p := s.start(t)
	w := at(p)
	placing := steadily(t, w, 10)
	testbed.Eventually(t, limit, func() bool { return placing.confirmed.Load() >= 10 }, "orders come in")
	server.Stop(t, testbed.Immediate)
	for i := range 3 {
		order, _ := invented(900_000 + i)
		asked := time.Now()
		res := s.refused(t, p, order)
		require.NotEmpty(t, res.Header.Get("Retry-After"))
		require.Less(t, time.Since(asked), 8*time.Second, "503 comes within the limit of a request")
	}
	require.Equal(t, http.StatusServiceUnavailable, p.ready())
	server.Start(t)
	recovers(t, w, 910_000)

	terminate(t, server.DSN("postgres"))
	recovers(t, w, 920_000)
	n := placing.stop(t)
	s.balanced(t, n+2) // the two of recovers; what was refused was not taken
	p.stop()
}

// refused places an order while the database is away.
func (s *system) refused(t *testing.T, p *process, order any) *http.Response {
	t.Helper()
	body, err := json.Marshal(order)
	require.NoError(t, err)
	res, err := client.Post(p.api+"/pedidos", "application/json", bytes.NewReader(body))
	require.NoError(t, err)
	answer, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode, string(answer))
	return res
}

// recovers requires that an order placed now is paid within 30 s: the API, the
// relays and the consumers all work again.
func recovers(t *testing.T, w *where, i int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	since := time.Now()
	order, _ := invented(i)
	require.NoError(t, post(ctx, w, 0, "/pedidos", order))
	for estadoAt(ctx, w, order.ID) != "pagado" {
		require.NoError(t, ctx.Err(), "order %s is not paid 30s after the database came back", order.ID)
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("an order is paid %s after the outage", time.Since(since).Round(time.Millisecond))
}

// terminate ends every session of km0 on a server.
func terminate(t *testing.T, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	var ended int
	require.NoError(t, conn.QueryRow(t.Context(), `
		SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'km0 %' AND pg_terminate_backend(pid)`).Scan(&ended))
	require.Greater(t, ended, 4, "pools and lane sessions")
	require.NoError(t, conn.Close(t.Context()))
}
