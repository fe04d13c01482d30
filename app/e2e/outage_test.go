package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
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

// cutter passes PostgreSQL connections on. Armed, it cuts the first one whose
// client's bytes of a COMMIT or of the Sync that ends a batch have passed; with
// a victim, the one that carries its name, when the batch with it has passed.
type cutter struct {
	listener net.Listener
	target   string
	armed    atomic.Bool
	victim   atomic.Pointer[string]
	cuts     atomic.Int32
	open     sync.WaitGroup
}

func newCutter(t *testing.T, socket string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &cutter{listener: l, target: socket}
	c.open.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.open.Go(func() { c.pass(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close() })
	return c
}

func (c *cutter) addr() (host, port string) {
	a := c.listener.Addr().(*net.TCPAddr)
	return a.IP.String(), strconv.Itoa(a.Port)
}

func (c *cutter) pass(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("unix", c.target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	go func() { _, _ = io.Copy(client, server); _ = client.Close() }()
	buffer := make([]byte, 64<<10)
	var marked *string // the victim, once its name has passed here
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		ends := bytes.HasSuffix(buffer[:n], []byte("S\x00\x00\x00\x04"))
		if v := c.victim.Load(); v != nil && bytes.Contains(buffer[:n], []byte(*v)) {
			marked = v
		}
		struck := marked != nil && ends && c.victim.CompareAndSwap(marked, nil)
		commits := bytes.Contains(buffer[:n], []byte("commit\x00")) || bytes.Contains(buffer[:n], []byte("INSERT INTO pedidos")) ||
			ends && n > 300
		if struck || commits && c.armed.CompareAndSwap(true, false) {
			_ = client.Close() // the answer is lost, the bytes are not
			_, _ = server.Write(buffer[:n])
			c.cuts.Add(1)
			time.Sleep(200 * time.Millisecond) // the server must read them before it sees the end
			return
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// TestALostAnswerToCommitIsNeitherAnErrorNorASecondOrder is case C11: the
// database committed, nobody heard.
func TestALostAnswerToCommitIsNeitherAnErrorNorASecondOrder(t *testing.T) {
	t.Parallel()
	s := newSystem(t, gateway.Options{})
	c := s.through(t, "pedidos")
	p := s.start(t)
	w := at(p)
	for i := range 20 {
		order, _ := invented(i)
		time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond) // anything may be under way
		c.armed.Store(true)
		require.NoError(t, post(t.Context(), w, i, "/pedidos", order))
	}
	require.Greater(t, c.cuts.Load(), int32(5), "the proxy must have cut")
	s.balanced(t, 20)
	p.stop()
}
