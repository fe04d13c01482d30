package e2e_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"km0/modules/pagos/gateway"
	"km0/platform/testbed"
)

// TestADatabaseThatDoesNotAnswerHoldsUpNothingElse is the rest of case C15:
// connections that are neither closed nor answered.
func TestADatabaseThatDoesNotAnswerHoldsUpNothingElse(t *testing.T) {
	t.Parallel()
	s := newSystem(t, gateway.Options{})
	pagos, pedidos := s.freezer(t, "pagos"), s.freezer(t, "pedidos")
	p := s.start(t, "KM0_HTTP_TIMEOUT=1s")

	pagos.freeze()
	order, _ := invented(0)
	require.NoError(t, post(t.Context(), at(p), 0, "/pedidos", order), "pedidos works on")
	status, body := ask(t, p.ops+"/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	var ready struct{ Parts map[string]string }
	require.NoError(t, json.Unmarshal([]byte(body), &ready))
	require.Equal(t, "not ready", ready.Parts["database pagos"], body)
	for _, name := range []string{"pedidos", "inventario", "bus"} {
		require.Equal(t, "ready", ready.Parts["database "+name], body)
	}
	status, body = ask(t, p.ops+"/metrics")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, `km0_outbox_pending_rows{module="pedidos"}`)
	require.Contains(t, body, `km0_consumer_lag_messages{consumer="pagos.cobro"}`)
	require.NotContains(t, body, `km0_outbox_pending_rows{module="pagos"}`)
	pagos.thaw()
	require.Equal(t, "pagado", becomes(t, p, order.ID, "pagado"))

	pedidos.freeze()
	next, _ := invented(1)
	asked := time.Now()
	res := s.refused(t, p, next)
	require.NotEmpty(t, res.Header.Get("Retry-After"))
	require.Less(t, time.Since(asked), 5*time.Second, "503 comes at the limit of a request, 1 s here")
	pedidos.thaw()
	require.NoError(t, post(t.Context(), at(p), 0, "/pedidos", next))
	require.Equal(t, "pagado", becomes(t, p, next.ID, "pagado"))
	s.balanced(t, 2)
	p.stop()
}

func ask(t *testing.T, url string) (status int, body string) {
	t.Helper()
	res, err := client.Get(url)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(text)
}

// freezer passes PostgreSQL connections on, and while it is frozen nothing.
type freezer struct{ gate sync.RWMutex }

func (f *freezer) freeze() { f.gate.Lock() }
func (f *freezer) thaw()   { f.gate.Unlock() }

// freezer leads a database's connections through a freezer.
func (s *system) freezer(t *testing.T, name string) *freezer {
	t.Helper()
	cfg, err := pgx.ParseConfig(s.dsns[name])
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	f := &freezer{}
	target := cfg.Host + "/.s.PGSQL." + strconv.Itoa(int(cfg.Port))
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go f.pass(conn, target)
		}
	}()
	a := l.Addr().(*net.TCPAddr)
	s.dsns[name] = testbed.With(testbed.With(s.dsns[name], "host", a.IP.String()), "port", strconv.Itoa(a.Port))
	return f
}

func (f *freezer) pass(client net.Conn, socket string) {
	server, err := net.Dial("unix", socket)
	if err != nil {
		_ = client.Close()
		return
	}
	copied := func(to, from net.Conn) {
		defer func() { _, _ = to.Close(), from.Close() }()
		buffer := make([]byte, 32<<10)
		for {
			n, err := from.Read(buffer)
			f.gate.RLock()
			if n > 0 && err == nil {
				_, err = to.Write(buffer[:n])
			}
			f.gate.RUnlock()
			if err != nil {
				return
			}
		}
	}
	go copied(server, client)
	copied(client, server)
}

// TestTheSmallestPoolIsEnough is case C53: more handlers and requests than
// connections, and handlers that hold theirs while the gateway takes its time.
func TestTheSmallestPoolIsEnough(t *testing.T) {
	t.Parallel()
	s := newSystem(t, gateway.Options{Latency: 150 * time.Millisecond, Unavailable: 0.1, UnavailableCalls: 1})
	p := s.start(t, "KM0_DATABASES_MAX_CONNS=4")
	load(t, at(p), orders)()
	s.balanced(t, orders)
	var idle int
	require.NoError(t, s.pools.Pagos.QueryRow(t.Context(), `
		SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`).Scan(&idle))
	require.Zero(t, idle)
	p.stop()
}
