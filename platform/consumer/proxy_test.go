package consumer_test

import (
	"bytes"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"km0/platform/testbed"
)

// commitProxy stands between a pool and PostgreSQL. When cut is set it lets the
// next COMMIT through, and breaks the connection instead of passing the answer.
type commitProxy struct {
	dsn string
	cut atomic.Bool
}

func newCommitProxy(t *testing.T, dsn string) *commitProxy {
	t.Helper()
	cfg, err := pgconn.ParseConfig(dsn)
	require.NoError(t, err)
	network, address := pgconn.NetworkAddress(cfg.Host, cfg.Port)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	host, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	p := &commitProxy{dsn: testbed.With(testbed.With(testbed.With(dsn, "host", host), "port", port), "sslmode", "disable")}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial(network, address)
			if err != nil {
				_ = client.Close()
				return
			}
			go p.pass(client, server)
		}
	}()
	return p
}

func (p *commitProxy) pass(client, server net.Conn) {
	defer client.Close()
	defer server.Close()
	var swallow atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer client.Close()
		buffer := make([]byte, 64<<10)
		for {
			n, err := server.Read(buffer)
			if err != nil || swallow.Load() {
				return
			}
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			break
		}
		if bytes.Contains(buffer[:n], []byte("commit\x00")) && p.cut.CompareAndSwap(true, false) {
			swallow.Store(true)
		}
		if _, err := io.Copy(server, bytes.NewReader(buffer[:n])); err != nil {
			break
		}
	}
	_ = server.Close()
	<-ended
}
