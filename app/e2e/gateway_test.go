package e2e_test

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"km0/modules/pagos/gateway"
	"km0/platform/testbed"
)

// TestPaymentsWaitWhileTheGatewayIsDown: longer than all attempts of a message
// would take, and yet no dead letter.
func TestPaymentsWaitWhileTheGatewayIsDown(t *testing.T) {
	t.Parallel()
	s := newSystem(t, gateway.Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port of our own, closed for now
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	s.gateway = "http://" + addr
	p := s.start(t)
	w := at(p)
	for i := range 6 {
		order, _ := invented(i)
		require.NoError(t, post(t.Context(), w, i, "/pedidos", order))
	}
	require.NoError(t, post(t.Context(), w, 0, "/pedidos/P-2026-000001/cancelacion", struct{}{}))
	testbed.Eventually(t, 20*time.Second, func() bool { return strings.Contains(p.stderr.String(), "circuit breaker") }, "the breaker opens")
	time.Sleep(6 * time.Second) // the outage: six attempts take under three seconds

	simulator, err := gateway.OpenSimulator(filepath.Join(testbed.Dir(t), "gateway.db"), gateway.Options{})
	require.NoError(t, err)
	l, err = net.Listen("tcp", addr)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() { defer close(served); _ = simulator.Serve(ctx, l) }()
	t.Cleanup(func() { cancel(); <-served; require.NoError(t, simulator.Close()) })
	s.ledger, err = gateway.NewClient(s.gateway, 10*time.Second)
	require.NoError(t, err)
	t.Cleanup(s.ledger.Close)

	report := s.balanced(t, 6)
	require.Zero(t, report.Counts.DeadLetters["transitorio_agotado"])
	require.Equal(t, int64(4), report.Counts.Orders["pagado"]) // one declined, one cancelled
	p.stop()
}
