package e2e_test

import (
	"bytes"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cutter passes PostgreSQL connections on. Armed, it cuts the first one whose
// client's bytes of a COMMIT or of the Sync that ends a batch have passed; with
// a victim, the one that carries its name, when the server has answered the
// batch with it. (Before the answer it would be chance: pgx cancels what a lost
// connection was doing.)
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
	var swallow atomic.Bool
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		answers(client, server, &swallow)
		_ = client.Close()
	}()
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
		if marked != nil && ends && c.victim.CompareAndSwap(marked, nil) {
			swallow.Store(true)
			_, _ = server.Write(buffer[:n])
			<-answered
			return
		}
		commits := bytes.Contains(buffer[:n], []byte("commit\x00")) || bytes.Contains(buffer[:n], []byte("INSERT INTO pedidos")) ||
			ends && n > 300
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

// answers passes on what the server says. To swallow is to wait for the end of
// its next answer and to keep it.
func answers(client io.Writer, server io.Reader, swallow *atomic.Bool) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		if swallow.Load() {
			if bytes.HasSuffix(buffer[:n], []byte("Z\x00\x00\x00\x05I")) { // ready for the next query
				return
			}
			continue
		}
		if _, err := client.Write(buffer[:n]); err != nil {
			return
		}
	}
}
