package gateway_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"km0/modules/pagos/gateway"
)

// operation is a charge, or an annulment of its key.
type operation struct {
	cobro  gateway.Cobro
	anular bool
}

func operations(t *rapid.T, run int64) []operation {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) operation {
		clave := fmt.Sprintf("r%d-%s", run, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key"))
		return operation{
			anular: rapid.IntRange(0, 2).Draw(t, "kind") == 0,
			cobro: gateway.Cobro{
				Clave: clave, PedidoID: "P-1",
				Tarjeta:         rapid.SampledFrom([]string{"tok_ana", "tok_ana", "tok_rechazada"}).Draw(t, "card"),
				ImporteCentimos: rapid.SampledFrom([]int64{100, 100, 250}).Draw(t, "cents"),
			},
		}
	}), 1, 16).Draw(t, "operations")
}

// books is what callers were told, by key.
type books struct {
	mu      sync.Mutex
	charges map[string]map[string]int64 // key, ref, cents
	refunds map[string]map[string]int64
}

func note(of map[string]map[string]int64, clave, ref string, cents int64) {
	if of[clave] == nil {
		of[clave] = map[string]int64{}
	}
	of[clave][ref] = cents
}

func (b *books) run(t *testing.T, r *rig, op operation) error {
	if op.anular {
		d, err := r.Anular(t.Context(), op.cobro.Clave)
		if err == nil && d.ImporteCentimos > 0 {
			b.mu.Lock()
			defer b.mu.Unlock()
			note(b.refunds, op.cobro.Clave, d.Ref, d.ImporteCentimos)
		}
		return err
	}
	recibo, err := r.Cobrar(t.Context(), op.cobro)
	switch {
	case errors.Is(err, gateway.ErrTarjetaRechazada), errors.Is(err, gateway.ErrAnulado), errors.Is(err, gateway.ErrClaveReutilizada):
		return nil
	case err == nil:
		b.mu.Lock()
		defer b.mu.Unlock()
		note(b.charges, op.cobro.Clave, recibo.Ref, recibo.ImporteCentimos)
	}
	return err
}

// Any interleaving of charges and annulments of a few keys takes the money of
// a key at most once, gives it back at most once, and after an annulment
// nothing is held, whatever comes later.
func TestAnyInterleavingKeepsTheMoneyRight(t *testing.T) {
	t.Parallel()
	r := start(t, gateway.Options{})
	var runs atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		run := runs.Add(1)
		ops := operations(rt, run)
		told := &books{charges: map[string]map[string]int64{}, refunds: map[string]map[string]int64{}}
		errs := make([]error, len(ops))
		together(len(ops), func(i int) { errs[i] = told.run(t, r, ops[i]) })
		require.NoError(rt, errors.Join(errs...))

		annulled := map[string]bool{}
		for _, op := range ops {
			annulled[op.cobro.Clave] = annulled[op.cobro.Clave] || op.anular
		}
		entries := r.entries(rt)
		for clave := range annulled {
			require.LessOrEqual(rt, len(told.charges[clave]), 1, "one ref of a charge")
			require.LessOrEqual(rt, len(told.refunds[clave]), 1, "one ref of a refund")
			a := entries[clave]
			require.LessOrEqual(rt, a.Cargos, 1)
			require.LessOrEqual(rt, a.Devoluciones, a.Cargos, "never more back than was taken")
			if annulled[clave] {
				require.Equal(rt, a.Cargos, a.Devoluciones, "nothing is held")
			}
			for ref, cents := range told.charges[clave] {
				require.Equal(rt, a.Ref, ref)
				require.Equal(rt, a.Importe, cents)
			}
			for ref, cents := range told.refunds[clave] {
				require.Equal(rt, a.RefDevolucion, ref)
				require.Equal(rt, a.Importe, cents)
			}
		}
		for clave := range annulled { // late ones
			for _, late := range []operation{{anular: true}, {}, {anular: true}} {
				late.cobro = gateway.Cobro{Clave: clave, PedidoID: "P-1", Tarjeta: "tok_ana", ImporteCentimos: 100}
				require.NoError(rt, told.run(t, r, late))
			}
			require.LessOrEqual(rt, len(told.charges[clave]), 1)
			require.LessOrEqual(rt, len(told.refunds[clave]), 1)
		}
	})
	totals := r.resumen(t)
	require.Equal(t, totals.ImporteCobrado, totals.ImporteDevuelto)
	require.Positive(t, totals.ImporteCobrado)
}

// model is the simulator's rule in its shortest form: one state for each key.
type model struct {
	estado string
	cobro  gateway.Cobro
}

func (m *model) apply(op operation) (cents int64, err error) {
	switch {
	case op.anular && m.estado == gateway.Cobrado, op.anular && m.estado == gateway.Devuelto:
		m.estado = gateway.Devuelto
		return m.cobro.ImporteCentimos, nil
	case op.anular:
		m.estado = gateway.Anulado
		return 0, nil
	case m.estado == gateway.Anulado:
		return 0, gateway.ErrAnulado
	case m.estado != "" && m.cobro != op.cobro:
		return 0, gateway.ErrClaveReutilizada
	case m.estado == "":
		m.cobro, m.estado = op.cobro, gateway.Cobrado
		if strings.HasPrefix(op.cobro.Tarjeta, "tok_rechazada") {
			m.estado = gateway.Rechazado
		}
	}
	if m.estado == gateway.Rechazado {
		return 0, gateway.ErrTarjetaRechazada
	}
	return m.cobro.ImporteCentimos, nil
}

func TestOneAfterTheOtherEveryAnswerIsTheModels(t *testing.T) {
	t.Parallel()
	r := start(t, gateway.Options{})
	var runs atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		models := map[string]*model{}
		for i, op := range operations(rt, runs.Add(1)) {
			m := models[op.cobro.Clave]
			if m == nil {
				m = &model{}
				models[op.cobro.Clave] = m
			}
			cents, want := m.apply(op)
			var got int64
			var err error
			if op.anular {
				var d gateway.Devolucion
				d, err = r.Anular(t.Context(), op.cobro.Clave)
				got = d.ImporteCentimos
			} else {
				var recibo gateway.Recibo
				recibo, err = r.Cobrar(t.Context(), op.cobro)
				got = recibo.ImporteCentimos
			}
			require.ErrorIs(rt, err, want, "operation %d", i)
			require.Equal(rt, cents, got, "operation %d", i)
		}
		entries := r.entries(rt)
		for clave, m := range models {
			require.Equal(rt, m.estado, entries[clave].Estado)
		}
	})
}
