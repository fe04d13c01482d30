package e2e_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"km0/modules/pagos/gateway"
	"km0/platform/testbed"
)

// TestEverySignalToStopEndsCleanly is case C67: Ctrl-C as well as SIGTERM, and
// no client that hangs holds it up.
func TestEverySignalToStopEndsCleanly(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, gateway.Options{})
			p := s.start(t, "KM0_HTTP_TIMEOUT=1s")
			hang(t, p)
			require.NoError(t, p.cmd.Process.Signal(signal))
			asked := time.Now()
			select {
			case <-p.exited:
			case <-time.After(limit):
				t.Fatalf("km0 does not stop: %s", p.stderr)
			}
			require.NoError(t, p.err, p.stderr)
			t.Logf("stopped after %s", time.Since(asked).Round(time.Millisecond))
		})
	}
}

func TestReadinessEndsFirstAndASecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t, gateway.Options{})
	p := s.start(t, "KM0_HTTP_TIMEOUT=1m", "KM0_STOP_TIMEOUT=1m")
	hang(t, p) // the stop would take a minute
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	testbed.Eventually(t, limit, func() bool { return p.ready() == http.StatusServiceUnavailable }, "it is not ready any more")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.exited:
	case <-time.After(limit):
		t.Fatal("the second signal does not end it")
	}
	var exit *exec.ExitError
	require.True(t, errors.As(p.err, &exit), "%v", p.err)
	require.Equal(t, 128+int(syscall.SIGTERM), exit.ExitCode())
}

// hang sends the beginning of a request and keeps the connection.
func hang(t *testing.T, p *process) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.api, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "POST /pedidos HTTP/1.1\r\nHost: km0\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	require.NoError(t, err)
	// One more request after it was sent: by now the server has seen the first.
	estadoAt(t.Context(), at(p), "P-1")
}
