package e2e_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
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
	wait := load(t, at(p), 40)
	server.Stop(t, testbed.Immediate)
	started := time.Now()
	res, err := client.Post(p.api+"/pedidos", "application/json", strings.NewReader(
		`{"id":"P-x","cliente":"ana","mercado":"g","tarjeta":"tok_x","lineas":[{"producto":"calabacin","cantidad":1,"precio_centimos":1}]}`))
	require.NoError(t, err)
	answer, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode, string(answer))
	require.NotEmpty(t, res.Header.Get("Retry-After"))
	require.Less(t, time.Since(started), 8*time.Second)
	res, err = client.Get(p.ops + "/readyz")
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
	server.Start(t)
	wait()
	s.balanced(t, 40)

	terminate(t, server.DSN("postgres"))
	load(t, at(p), 60)() // the first 40 are repeats
	s.balanced(t, 60)
	p.stop()
}

// terminate ends every session of km0 on a server.
func terminate(t *testing.T, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'km0 %'`)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
}

// cutter passes a PostgreSQL connection on and, when armed, cuts it after the
// client's bytes of a COMMIT or of the Sync that ends a batch have passed.
type cutter struct {
	listener net.Listener
	target   string
	armed    atomic.Bool
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

func (c *cutter) pass(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("unix", c.target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	go func() { _, _ = io.Copy(client, server); _ = client.Close() }()
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		commits := bytes.Contains(buffer[:n], []byte("commit\x00")) || bytes.Contains(buffer[:n], []byte("INSERT INTO pedidos")) ||
			bytes.HasSuffix(buffer[:n], []byte("S\x00\x00\x00\x04")) && n > 300
		if commits && c.armed.CompareAndSwap(true, false) {
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
	cfg, err := pgx.ParseConfig(s.dsns["pedidos"])
	require.NoError(t, err)
	c := newCutter(t, cfg.Host+"/.s.PGSQL.5432")
	addr := c.listener.Addr().(*net.TCPAddr)
	s.dsns["pedidos"] = testbed.With(testbed.With(s.dsns["pedidos"], "host", "127.0.0.1"), "port", strconv.Itoa(addr.Port))
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
