package gateway_test

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"km0/modules/pagos/gateway"
)

// hangTimeout is what a hung call costs a test, and what a busy machine has to
// get a charge into the ledger.
const hangTimeout = 2 * time.Second

func TestAnUnavailableGatewayRefusesTheFirstCallsOfAKeyAndChargesNothing(t *testing.T) {
	t.Parallel()
	r := start(t, gateway.Options{Unavailable: 1, UnavailableCalls: 2})
	for range 2 {
		_, err := r.Cobrar(t.Context(), cobro("cobro-1"))
		require.ErrorIs(t, err, gateway.ErrNoDisponible)
		_, err = r.Anular(t.Context(), "cobro-2")
		require.ErrorIs(t, err, gateway.ErrNoDisponible)
	}
	require.Empty(t, r.entries(t))
	_, err := r.Cobrar(t.Context(), cobro("cobro-1"))
	require.NoError(t, err)
	_, err = r.Anular(t.Context(), "cobro-2")
	require.NoError(t, err)
	require.Equal(t, int64(4), r.resumen(t).FallosInyectados)
}

// The unknown outcome: the money is taken, the caller is told nothing.
func TestAnAnswerThatNeverCameIsFoundByTheSameKey(t *testing.T) {
	t.Parallel()
	r := startOn(t, filepath.Join(t.TempDir(), "gateway.db"), gateway.Options{Hang: 1, HangFor: time.Hour}, hangTimeout)
	patient := dial(t, r.url, ample)
	claves := []string{"repeated", "annulled"}
	errs := make([]error, len(claves))
	together(len(claves), func(i int) { _, errs[i] = r.Cobrar(t.Context(), cobro(claves[i])) })
	for i, clave := range claves {
		require.ErrorIs(t, errs[i], gateway.ErrNoDisponible)
		require.ErrorIs(t, errs[i], context.DeadlineExceeded)
		require.Equal(t, gateway.Cobrado, r.entries(t)[clave].Estado)
	}
	recibo, err := patient.Cobrar(t.Context(), cobro("repeated"))
	require.NoError(t, err)
	require.Equal(t, r.entries(t)["repeated"].Ref, recibo.Ref)
	require.Equal(t, 1, r.entries(t)["repeated"].Cargos)

	d, err := patient.Anular(t.Context(), "annulled")
	require.NoError(t, err)
	require.Equal(t, int64(1250), d.ImporteCentimos)
	totals := r.resumen(t)
	require.Equal(t, int64(1250), totals.ImporteCobrado-totals.ImporteDevuelto)
	require.Equal(t, int64(2), totals.FallosInyectados)
}

func TestAKeyMayBeRefusedFirstAndHangThen(t *testing.T) {
	t.Parallel()
	r := startOn(t, filepath.Join(t.TempDir(), "gateway.db"),
		gateway.Options{Unavailable: 1, Hang: 1, HangFor: time.Hour}, hangTimeout)
	_, err := r.Cobrar(t.Context(), cobro("cobro-1"))
	require.ErrorIs(t, err, gateway.ErrNoDisponible)
	require.Empty(t, r.entries(t))
	_, err = r.Cobrar(t.Context(), cobro("cobro-1"))
	require.ErrorIs(t, err, gateway.ErrNoDisponible)
	require.Len(t, r.entries(t), 1)
	require.Equal(t, int64(2), r.resumen(t).FallosInyectados)
}

func TestFaultsHitTheSameShareOfKeysInEveryRun(t *testing.T) {
	t.Parallel()
	const keys = 400
	run := func() (refused []string) {
		r := start(t, gateway.Options{Unavailable: 0.25})
		errs := make([]error, keys)
		clave := func(i int) string { return fmt.Sprintf("cobro-%06d", i) }
		inTurns(keys, func(i int) { _, errs[i] = r.Cobrar(t.Context(), cobro(clave(i))) })
		for i, err := range errs {
			if err != nil {
				require.ErrorIs(t, err, gateway.ErrNoDisponible)
				refused = append(refused, clave(i))
			}
		}
		require.Equal(t, int64(len(refused)), r.resumen(t).FallosInyectados)
		return refused
	}
	first := run()
	require.InDelta(t, keys/4, len(first), keys/10)
	require.Equal(t, first, run())
}

func TestFaultsEndAfterFailFor(t *testing.T) {
	t.Parallel()
	r := start(t, gateway.Options{Unavailable: 1, UnavailableCalls: math.MaxInt, Hang: 1, HangFor: time.Hour, FailFor: 300 * time.Millisecond})
	require.Eventually(t, func() bool {
		_, err := r.Cobrar(t.Context(), cobro("cobro-1"))
		return err == nil
	}, ample, 10*time.Millisecond)
}

func TestLatencyHoldsEveryCall(t *testing.T) {
	t.Parallel()
	const latency = 50 * time.Millisecond
	r := start(t, gateway.Options{Latency: latency})
	began := time.Now()
	_, err := r.Cobrar(t.Context(), cobro("cobro-1"))
	require.NoError(t, err)
	_, err = r.Anular(t.Context(), "cobro-1")
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(began), 2*latency)
}

func TestOptionsOutsideTheirLimitsAreRefused(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]gateway.Options{
		"Unavailable":      {Unavailable: 1.1},
		"Hang":             {Hang: math.NaN()},
		"UnavailableCalls": {UnavailableCalls: -1},
		"HangFor":          {HangFor: -1},
		"Latency":          {Latency: -1},
		"FailFor":          {FailFor: -1},
	} {
		_, err := gateway.OpenSimulator(filepath.Join(t.TempDir(), "gateway.db"), opts)
		require.ErrorContains(t, err, name+" ")
	}
}
