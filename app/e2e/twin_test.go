package e2e_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"km0/modules/pagos/gateway"
	"km0/platform/testbed"
)

// TestTwoInstancesOneOfThemKilledLeaveTheStateOfOne: who does the work, and
// whether one of them dies of it, does not show in what is left.
func TestTwoInstancesOneOfThemKilledLeaveTheStateOfOne(t *testing.T) {
	t.Parallel()
	for range rounds(t) {
		alone := plentiful(t)
		p := alone.start(t)
		load(t, at(p), orders)()
		alone.balanced(t, orders)
		p.stop()

		shared := plentiful(t)
		a, b := shared.start(t), shared.start(t)
		w := at(a, b)
		wait := load(t, w, orders)
		testbed.Eventually(t, 30*time.Second, func() bool {
			var events int
			require.NoError(t, shared.pools.Bus.QueryRow(t.Context(), `SELECT count(*) FROM mensajes`).Scan(&events))
			return events > orders/2
		}, "events are under way")
		a.kill()
		w.move(b)
		a = shared.start(t)
		w.move(a, b)
		wait()
		shared.balanced(t, orders) // 0 swaps is one of its checks
		a.stop()
		b.stop()

		require.Equal(t, alone.finalState(t), shared.finalState(t))
	}
}

// plentiful is a system in which no product runs out: which order gets the
// last piece would be chance.
func plentiful(t *testing.T) *system {
	t.Helper()
	s := newSystem(t, gateway.Options{})
	_, err := s.pools.Inventario.Exec(t.Context(), `UPDATE stock SET unidades = 10000`)
	require.NoError(t, err)
	return s
}
