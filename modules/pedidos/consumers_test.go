package pedidos_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	inventario "km0/modules/inventario/contract"
	pagos "km0/modules/pagos/contract"
	"km0/modules/pedidos"
	"km0/modules/pedidos/contract"
)

func TestStateMachine(t *testing.T) {
	t.Parallel()
	const c, p, x = pedidos.Creado, pedidos.Pagado, pedidos.Cancelado
	for _, step := range []struct {
		from, to pedidos.Estado
		may      bool
	}{
		{c, c, false}, {c, p, true}, {c, x, true},
		{p, c, false}, {p, p, false}, {p, x, true},
		{x, c, false}, {x, p, false}, {x, x, false},
		{"", c, false}, {"roto", x, false},
	} {
		require.Equal(t, step.may, step.from.Puede(step.to), "%q to %q", step.from, step.to)
	}
}

func TestEachEventMovesTheOrderAndTellsTheOthers(t *testing.T) {
	t.Parallel()
	const id = "P-2026-000123"
	paid, noStock, declined := pagos.Confirmado{PedidoID: id, Importe: 3110, Ref: "R-1"}, inventario.Insuficiente{PedidoID: id}, pagos.Rechazado{PedidoID: id, Motivo: "x"}
	cancelled := func(motivo string) string { return `pedido.cancelado {"id": "` + id + `", "motivo": "` + motivo + `"}` }
	const pagado = `pedido.pagado {"id": "` + id + `", "importe": 3110}`
	for name, c := range map[string]struct {
		events  []any
		history []string
		out     []string
	}{
		"paid":                       {[]any{paid}, []string{"creado", "pagado"}, []string{pagado}},
		"no stock":                   {[]any{noStock}, []string{"creado", "cancelado sin_stock"}, []string{cancelled("sin_stock")}},
		"declined":                   {[]any{declined}, []string{"creado", "cancelado tarjeta_rechazada"}, []string{cancelled("tarjeta_rechazada")}},
		"paid, then no stock":        {[]any{paid, noStock}, []string{"creado", "pagado", "cancelado sin_stock"}, []string{pagado, cancelled("sin_stock")}},
		"no stock, then paid":        {[]any{noStock, paid}, []string{"creado", "cancelado sin_stock"}, []string{cancelled("sin_stock")}},
		"no stock and declined":      {[]any{noStock, declined}, []string{"creado", "cancelado sin_stock"}, []string{cancelled("sin_stock")}},
		"everything twice":           {[]any{paid, paid, declined, declined, noStock}, []string{"creado", "pagado", "cancelado tarjeta_rechazada"}, []string{pagado, cancelled("tarjeta_rechazada")}},
		"cancelled, then everything": {[]any{nil, paid, declined, noStock, nil}, []string{"creado", "cancelado cliente"}, []string{cancelled("cliente")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t)
			require.Equal(t, 201, r.send(t, "POST", "/pedidos", body).Code)
			for _, e := range c.events {
				require.NoError(t, r.happen(t.Context(), id, e, false))
			}
			require.Equal(t, c.history, r.texts(t, `
				SELECT concat_ws(' ', estado, motivo) FROM historial_pedido WHERE pedido_id = $1 ORDER BY orden`, id))
			require.Equal(t, c.out, r.texts(t, `
				SELECT tipo || ' ' || carga::text FROM outbox WHERE agregado_id = $1 AND tipo <> 'pedido.creado' ORDER BY posicion`, id))
		})
	}
}

// happen delivers an event; nil is a cancellation by the client.
func (r *rig) happen(ctx context.Context, id string, event any, killed bool) error {
	switch event.(type) {
	case pagos.Confirmado:
		return r.deliver(ctx, pagos.PagoConfirmado, event, killed)
	case pagos.Rechazado:
		return r.deliver(ctx, pagos.PagoRechazado, event, killed)
	case inventario.Insuficiente:
		return r.deliver(ctx, inventario.StockInsuficiente, event, killed)
	}
	_, err := r.module.Cancelar(ctx, id, pedidos.MotivoCliente)
	return err
}

func TestEventOfAnOrderThatDoesNotExistIsAnError(t *testing.T) {
	t.Parallel()
	r := start(t)
	for _, e := range []any{pagos.Confirmado{PedidoID: "nada", Importe: 1, Ref: "R"}, pagos.Rechazado{PedidoID: "nada"}, inventario.Insuficiente{PedidoID: "nada"}} {
		require.ErrorIs(t, r.happen(t.Context(), "nada", e, false), pedidos.ErrNoExiste)
	}
	for _, e := range []any{pagos.Confirmado{PedidoID: "a\x00", Importe: 1}, pagos.Confirmado{PedidoID: "P-1", Importe: -1}, pagos.Rechazado{}, inventario.Insuficiente{}} {
		err := r.happen(t.Context(), "", e, false)
		require.ErrorContains(t, err, "expected", "refused before it reaches the database")
	}
	require.Zero(t, r.number(t, `count(*) FROM outbox`))
}

// TestAnyOrderRepetitionAndLossOfEventsEndsInOneState: whatever crosses, a
// cancellation wins, each change has its event, and their order is the history's.
func TestAnyOrderRepetitionAndLossOfEventsEndsInOneState(t *testing.T) {
	t.Parallel()
	r := start(t)
	var n atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		id := fmt.Sprintf("R-%d", n.Add(1))
		_, _, err := r.module.Crear(t.Context(), contract.Pedido{ID: id, Cliente: "ana", Mercado: "girona", Tarjeta: "tok",
			Lineas: []contract.Linea{{Producto: "a", Cantidad: 1, PrecioCentimos: 1}}}, "")
		require.NoError(t, err)
		all := []any{pagos.Confirmado{PedidoID: id, Importe: 1, Ref: "R"}, pagos.Rechazado{PedidoID: id}, inventario.Insuficiente{PedidoID: id}, nil}
		happened := rapid.SliceOfNDistinct(rapid.IntRange(0, len(all)-1), 0, len(all), func(i int) int { return i }).Draw(t, "events")
		var deliveries []func() error
		cancelled, paid := false, false
		for _, i := range happened {
			cancelled, paid = cancelled || i > 0, paid || i == 0
			deliveries = append(deliveries, func() error { return r.happen(t.Context(), id, all[i], false) })
			for range rapid.IntRange(0, 2).Draw(t, "repeats") {
				killed := rapid.Bool().Draw(t, "killed")
				deliveries = append(deliveries, func() error { return r.happen(t.Context(), id, all[i], killed) })
			}
		}
		if len(deliveries) > 1 {
			deliveries = rapid.Permutation(deliveries).Draw(t, "order")
		}
		errs := make([]error, len(deliveries))
		var running sync.WaitGroup
		together := rapid.Bool().Draw(t, "together")
		for i, deliver := range deliveries {
			running.Go(func() { errs[i] = deliver() })
			if !together {
				running.Wait()
			}
		}
		running.Wait()
		require.NoError(t, errors.Join(errs...))

		o, err := r.module.Pedido(t.Context(), id)
		require.NoError(t, err)
		want := pedidos.Creado
		switch {
		case cancelled:
			want = pedidos.Cancelado
		case paid:
			want = pedidos.Pagado
		}
		require.Equal(t, want, o.Estado)
		var history []string
		for i, c := range o.Historial {
			history = append(history, "pedido."+string(c.Estado))
			if i > 0 {
				require.True(t, o.Historial[i-1].Estado.Puede(c.Estado))
			}
		}
		require.Equal(t, o.Estado, o.Historial[len(o.Historial)-1].Estado)
		require.Equal(t, o.Motivo, o.Historial[len(o.Historial)-1].Motivo)
		require.Equal(t, history, r.texts(t, `SELECT tipo FROM outbox WHERE agregado_id = $1 ORDER BY posicion`, id))
	})
}
