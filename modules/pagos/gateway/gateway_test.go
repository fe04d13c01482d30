package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"km0/modules/pagos/gateway"
)

func TestWhatAKeyGoesThrough(t *testing.T) {
	t.Parallel()
	r := start(t, gateway.Options{})
	type step struct {
		anular bool
		cobro  func(*gateway.Cobro) // nil: as it is
		err    error
		cents  int64 // of the receipt, or given back
	}
	charge, again := step{cents: 1250}, step{cents: 1250}
	annul := func(cents int64) step { return step{anular: true, cents: cents} }
	refused := func(err error) step { return step{err: err} }
	other := func(change func(*gateway.Cobro)) step {
		return step{cobro: change, err: gateway.ErrClaveReutilizada}
	}
	decline := func(c *gateway.Cobro) { c.Tarjeta = "tok_rechazada" }
	for name, life := range map[string]struct {
		steps  []step
		estado string
		calls  int
	}{
		"a charge":                         {[]step{charge}, gateway.Cobrado, 1},
		"a repeated charge":                {[]step{charge, again, again}, gateway.Cobrado, 3},
		"a charge given back once":         {[]step{charge, annul(1250), annul(1250), annul(1250)}, gateway.Devuelto, 1},
		"a charge repeated after it":       {[]step{charge, annul(1250), again, annul(1250)}, gateway.Devuelto, 2},
		"a charge after the annulment":     {[]step{annul(0), refused(gateway.ErrAnulado), refused(gateway.ErrAnulado), annul(0)}, gateway.Anulado, 2},
		"an annulment of nothing":          {[]step{annul(0), annul(0)}, gateway.Anulado, 0},
		"a declined card":                  {[]step{{cobro: decline, err: gateway.ErrTarjetaRechazada}, {cobro: decline, err: gateway.ErrTarjetaRechazada}}, gateway.Rechazado, 2},
		"a declined card, annulled":        {[]step{{cobro: decline, err: gateway.ErrTarjetaRechazada}, annul(0), {cobro: decline, err: gateway.ErrAnulado}, refused(gateway.ErrAnulado)}, gateway.Anulado, 3},
		"another card after the decline":   {[]step{{cobro: decline, err: gateway.ErrTarjetaRechazada}, refused(gateway.ErrClaveReutilizada)}, gateway.Rechazado, 2},
		"another amount":                   {[]step{charge, other(func(c *gateway.Cobro) { c.ImporteCentimos++ }), again}, gateway.Cobrado, 3},
		"another card":                     {[]step{charge, other(func(c *gateway.Cobro) { c.Tarjeta = "tok_eva_4242" }), again}, gateway.Cobrado, 3},
		"another order":                    {[]step{charge, other(func(c *gateway.Cobro) { c.PedidoID = "P-other" }), again}, gateway.Cobrado, 3},
		"another amount after the refund":  {[]step{charge, annul(1250), other(func(c *gateway.Cobro) { c.ImporteCentimos++ })}, gateway.Devuelto, 2},
		"a charge of the largest amount":   {[]step{{cobro: func(c *gateway.Cobro) { c.ImporteCentimos = 1e12 }, cents: 1e12}}, gateway.Cobrado, 1},
		"a card that would also be masked": {[]step{{cobro: func(c *gateway.Cobro) { c.Tarjeta = "tok" }, cents: 1250}}, gateway.Cobrado, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clave := strings.ReplaceAll(name, " ", "-")
			refs := map[bool]string{} // of receipts, of refunds
			for i, s := range life.steps {
				var ref string
				var cents int64
				var err error
				if s.anular {
					var d gateway.Devolucion
					d, err = r.Anular(t.Context(), clave)
					ref, cents = d.Ref, d.ImporteCentimos
				} else {
					c := cobro(clave)
					if s.cobro != nil {
						s.cobro(&c)
					}
					var recibo gateway.Recibo
					recibo, err = r.Cobrar(t.Context(), c)
					ref, cents = recibo.Ref, recibo.ImporteCentimos
				}
				require.ErrorIs(t, err, s.err, "step %d", i)
				require.Equal(t, s.cents, cents, "step %d", i)
				require.Equal(t, cents > 0, ref != "", "step %d", i)
				if first := refs[s.anular]; first != "" && ref != "" {
					require.Equal(t, first, ref, "step %d: the first answer again", i)
				}
				if ref != "" {
					refs[s.anular] = ref
				}
			}
			a := r.entries(t)[clave]
			require.Equal(t, life.estado, a.Estado)
			require.Equal(t, life.calls, a.Llamadas)
			require.Equal(t, refs[false], a.Ref)
			require.Equal(t, refs[true], a.RefDevolucion)
			require.Equal(t, refs[false] != "", a.Cargos == 1)
			require.Equal(t, refs[true] != "", a.Devoluciones == 1)
		})
	}
}

func TestSixtyFourCallersWithOneKeyMakeOneCharge(t *testing.T) {
	t.Parallel()
	r := start(t, gateway.Options{})
	const callers = 64
	receipts, errs := make([]gateway.Recibo, callers), make([]error, callers)
	together(callers, func(i int) { receipts[i], errs[i] = r.Cobrar(t.Context(), cobro("cobro-1")) })
	require.NoError(t, errors.Join(errs...))
	for _, recibo := range receipts {
		require.Equal(t, receipts[0], recibo)
	}
	a := r.entries(t)["cobro-1"]
	require.Equal(t, callers, a.Llamadas)
	require.Equal(t, 1, a.Cargos)
	require.Equal(t, int64(1250), r.resumen(t).ImporteCobrado)
}

func TestSixtyFourAnnulmentsGiveTheMoneyBackOnce(t *testing.T) {
	t.Parallel()
	r := start(t, gateway.Options{})
	_, err := r.Cobrar(t.Context(), cobro("cobro-1"))
	require.NoError(t, err)
	const callers = 64
	refunds, errs := make([]gateway.Devolucion, callers), make([]error, callers)
	together(callers, func(i int) { refunds[i], errs[i] = r.Anular(t.Context(), "cobro-1") })
	require.NoError(t, errors.Join(errs...))
	for _, d := range refunds {
		require.Equal(t, refunds[0], d)
	}
	require.Equal(t, 1, r.entries(t)["cobro-1"].Devoluciones)
	require.Equal(t, int64(1250), r.resumen(t).ImporteDevuelto)
}

// One caller's conflict or refusal must not undo the charges that share its
// batch.
func TestConflictsAmongConcurrentChargesHurtOnlyThemselves(t *testing.T) {
	t.Parallel()
	r := start(t, gateway.Options{})
	_, err := r.Cobrar(t.Context(), cobro("taken"))
	require.NoError(t, err)
	errs := make([]error, 64)
	together(len(errs), func(i int) {
		c := cobro(fmt.Sprintf("k-%02d", i))
		if i%2 == 0 {
			c.Clave = "taken"
		}
		_, errs[i] = r.Cobrar(t.Context(), c)
	})
	for i, err := range errs {
		if i%2 == 0 {
			require.ErrorIs(t, err, gateway.ErrClaveReutilizada)
			continue
		}
		require.NoError(t, err)
	}
	require.Equal(t, int64(1+len(errs)/2), r.resumen(t).Cobros)
}

func TestTotalsAndLedgerAreTheSameForBothReaders(t *testing.T) {
	t.Parallel()
	r := start(t, gateway.Options{})
	for _, c := range []gateway.Cobro{cobro("charged"), cobro("returned"), declined("declined"), declined("dead")} {
		_, err := r.Cobrar(t.Context(), c)
		if c.Tarjeta == "tok_ana_4242" {
			require.NoError(t, err)
		}
	}
	for _, clave := range []string{"returned", "dead", "unknown"} {
		_, err := r.Anular(t.Context(), clave)
		require.NoError(t, err)
	}
	want := gateway.Resumen{Cobros: 2, Rechazados: 1, Devueltos: 1, Anulados: 2, ImporteCobrado: 2500, ImporteDevuelto: 1250}
	local, err := r.sim.Resumen()
	require.NoError(t, err)
	require.Equal(t, want, local)
	require.Equal(t, want, r.resumen(t))

	overHTTP := map[string]gateway.Asiento{}
	require.NoError(t, r.Libro(t.Context(), func(a gateway.Asiento) error { overHTTP[a.Clave] = a; return nil }))
	require.Equal(t, r.entries(t), overHTTP)
	require.Len(t, overHTTP, 5)
	require.Equal(t, "P-charged", overHTTP["charged"].PedidoID)

	enough := errors.New("enough")
	stop := func(gateway.Asiento) error { return enough }
	require.ErrorIs(t, r.Libro(t.Context(), stop), enough)
	require.ErrorIs(t, r.sim.Entries(stop), enough)
}

// The longest keys, in characters that JSON may escape, over several pages.
func TestTheLedgerIsReadWholeWhateverTheKeysAre(t *testing.T) {
	t.Parallel()
	r := start(t, gateway.Options{})
	const entries = 1201
	errs := make([]error, entries)
	inTurns(entries, func(i int) {
		c := cobro(fmt.Sprintf("%s%04d", strings.Repeat(`<&"\`, 49), i))
		c.PedidoID = strings.Repeat("<", 200)
		_, errs[i] = r.Cobrar(t.Context(), c)
	})
	require.NoError(t, errors.Join(errs...))
	last, seen := "", 0
	require.NoError(t, r.Libro(t.Context(), func(a gateway.Asiento) error {
		require.Less(t, last, a.Clave)
		last = a.Clave
		seen++
		return nil
	}))
	require.Equal(t, entries, seen)
	require.Len(t, r.entries(t), entries)
}

func TestTheCardIsNowhereInTheLedger(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gateway.db")
	r := startOn(t, path, gateway.Options{}, ample)
	c := cobro("cobro-1")
	_, err := r.Cobrar(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, "****4242", r.entries(t)["cobro-1"].Tarjeta)
	stored, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(stored), c.PedidoID)
	require.NotContains(t, string(stored), c.Tarjeta)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&0o077, "nobody else reads it")
}

func TestALedgerInUseIsAnErrorThatNamesIt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gateway.db")
	first, err := gateway.OpenSimulator(path, gateway.Options{})
	require.NoError(t, err)
	_, err = gateway.OpenSimulator(path, gateway.Options{})
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "another simulator has it open")
	require.NoError(t, first.Close())
	again, err := gateway.OpenSimulator(path, gateway.Options{})
	require.NoError(t, err)
	require.NoError(t, again.Close())

	_, err = gateway.OpenSimulator(filepath.Join(t.TempDir(), "missing", "gateway.db"), gateway.Options{})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestServeEndsWithItsContextAndLetsCallsFinish(t *testing.T) {
	t.Parallel()
	sim, err := gateway.OpenSimulator(filepath.Join(t.TempDir(), "gateway.db"), gateway.Options{Hang: 1, HangFor: time.Hour})
	require.NoError(t, err)
	defer func() { require.NoError(t, sim.Close()) }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	served, called := make(chan error, 1), make(chan error, 1)
	go func() { served <- sim.Serve(ctx, l) }()
	client := dial(t, "http://"+l.Addr().String(), time.Minute)
	go func() {
		_, err := client.Cobrar(t.Context(), cobro("cobro-1"))
		called <- err
	}()
	require.Eventually(t, func() bool { // the charge is made, its answer held back
		totals, err := sim.Resumen()
		return err == nil && totals.FallosInyectados == 1
	}, ample, time.Millisecond)
	stop()
	require.NoError(t, <-called)
	require.NoError(t, <-served)
	_, err = client.Cobrar(t.Context(), cobro("cobro-1"))
	require.ErrorIs(t, err, gateway.ErrNoDisponible)
}

// together runs n calls at once and waits for them.
func together(n int, call func(i int)) {
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { call(i) })
	}
	running.Wait()
}

// inTurns runs n calls, 32 at a time.
func inTurns(n int, call func(i int)) {
	var next atomic.Int64
	together(32, func(int) {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			call(i)
		}
	})
}
