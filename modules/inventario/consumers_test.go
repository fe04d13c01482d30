package inventario_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"km0/modules/inventario/contract"
	pedidos "km0/modules/pedidos/contract"
	"km0/platform/consumer"
	"km0/platform/envelope"
)

func TestDeductionHasOneEventPerProductInTheSameTransaction(t *testing.T) {
	t.Parallel()
	r := start(t)
	p := order("P-1", line("vino-crianza", 1), line("calabacin", 2), line("vino-crianza", 3))
	require.NoError(t, r.deliver(t.Context(), pedidos.PedidoCreado, p, true))
	require.Equal(t, 200, r.stock(t, "vino-crianza"), "rolled back")
	require.Zero(t, r.number(t, `count(*) FROM outbox`))

	require.NoError(t, r.deliver(t.Context(), pedidos.PedidoCreado, p, false))
	require.Equal(t, 196, r.stock(t, "vino-crianza"))
	require.Equal(t, 78, r.stock(t, "calabacin"))
	require.Equal(t, []contract.Actualizado{
		{Producto: "calabacin", Antes: 80, Despues: 78, Motivo: "pedido", PedidoID: "P-1"},
		{Producto: "vino-crianza", Antes: 200, Despues: 196, Motivo: "pedido", PedidoID: "P-1"},
	}, events[contract.Actualizado](t, r, contract.StockActualizado))
	require.Equal(t, 2, r.number(t, `count(*) FROM outbox WHERE agregado = 'producto' AND agregado_id = carga->>'producto' AND topico = $1`, contract.Topic))
}

func TestMissingStockTakesNothingAndSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	r := start(t)
	p := order("P-1", line("tomate-rosa", 3), line("queso-curado", 6), line("unicornio", 1))
	require.NoError(t, r.deliver(t.Context(), pedidos.PedidoCreado, p, false))
	require.Equal(t, 120, r.stock(t, "tomate-rosa"))
	require.Equal(t, 5, r.stock(t, "queso-curado"))
	require.Equal(t, []contract.Insuficiente{{PedidoID: "P-1", Faltan: []contract.Falta{
		{Producto: "queso-curado", Pedidas: 6, Disponibles: 5}, {Producto: "unicornio", Pedidas: 1},
	}}}, events[contract.Insuficiente](t, r, contract.StockInsuficiente))
	require.Equal(t, 1, r.number(t, `count(*) FROM outbox WHERE agregado_id = 'P-1'`), "the key is the order")

	r.restock(t, "queso-curado", 100)
	require.NoError(t, r.deliver(t.Context(), pedidos.PedidoCreado, p, false))
	require.NoError(t, r.deliver(t.Context(), pedidos.PedidoCancelado, pedidos.Cancelado{ID: "P-1", Motivo: "sin_stock"}, false))
	require.Equal(t, 1, r.number(t, `count(*) FROM outbox`), "no is no, also when there is stock again")
}

func TestRejectionHasTheBusinessCode(t *testing.T) {
	t.Parallel()
	r := start(t)
	raw, err := json.Marshal(order("P-1", line("queso-curado", 6)))
	require.NoError(t, err)
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	err = r.handlers[pedidos.PedidoCreado](t.Context(), tx, envelope.Event{ID: "e-1", Tipo: pedidos.PedidoCreado, Version: 2, Datos: raw})
	require.NoError(t, tx.Rollback(t.Context()))
	var rejection *consumer.Rejection
	require.ErrorAs(t, err, &rejection)
	require.Equal(t, "sin_stock", rejection.Code)
	require.ErrorContains(t, err, "6 of queso-curado, there are 5")
}

// C02: what is put on the bus past the API.
func TestRogueEventsChangeNothing(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.restock(t, "SKU-1", 10)
	const good = `{"id":"P-1","cliente":"ana","mercado":"girona","tarjeta":"tok","lineas":[{"producto":"SKU-1","cantidad":1,"precio_centimos":1}]}`
	for name, c := range map[string]struct {
		tipo, datos string
		version     int
	}{
		"negative":                  {pedidos.PedidoCreado, strings.ReplaceAll(good, `"cantidad":1`, `"cantidad":-5`), 1},
		"zero":                      {pedidos.PedidoCreado, strings.ReplaceAll(good, `"cantidad":1`, `"cantidad":0`), 1},
		"a fraction":                {pedidos.PedidoCreado, strings.ReplaceAll(good, `"cantidad":1`, `"cantidad":1.5`), 1},
		"2^31 - 1":                  {pedidos.PedidoCreado, strings.ReplaceAll(good, `"cantidad":1`, `"cantidad":2147483647`), 1},
		"2^63 - 1":                  {pedidos.PedidoCreado, strings.ReplaceAll(good, `"cantidad":1`, `"cantidad":9223372036854775807`), 1},
		"a negative second":         {pedidos.PedidoCreado, strings.ReplaceAll(good, `"cantidad":1`, `"cantidad":-1,"CANTIDAD":-2`), 1},
		"an impossible id":          {pedidos.PedidoCreado, strings.ReplaceAll(good, `"P-1"`, `"P-1\u0000"`), 1},
		"no lines":                  {pedidos.PedidoCreado, `{"id":"P-1","cliente":"ana","mercado":"girona","tarjeta":"tok"}`, 1},
		"an unknown version":        {pedidos.PedidoCreado, good, 3},
		"a cancellation of nothing": {pedidos.PedidoCancelado, `{"motivo":"cliente"}`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			err := r.commit(t.Context(), false, func(tx pgx.Tx) error {
				return r.handlers[c.tipo](t.Context(), tx, envelope.Event{ID: "e", Tipo: c.tipo, Version: c.version, Datos: json.RawMessage(c.datos)})
			})
			require.Error(t, err)
			var rejection *consumer.Rejection
			require.False(t, errors.As(err, &rejection), "no business rule: nobody reads it as an order")
			require.Equal(t, 10, r.stock(t, "SKU-1"))
			require.Zero(t, r.number(t, `(SELECT count(*) FROM outbox) + (SELECT count(*) FROM descuentos)`))
		})
	}
}

// C26: the first run of the case, then the second, twenty times.
func TestParallelOrdersNeverTakeMoreThanThereIs(t *testing.T) {
	t.Parallel()
	r := start(t)
	run := func(t *testing.T, id, producto string, stock int, cantidad func(i int) int) (taken int) {
		r.restock(t, producto, stock)
		var deliveries sync.WaitGroup
		var failed atomic.Value
		for i := range 50 {
			deliveries.Go(func() {
				p := order(fmt.Sprintf("%s-%d", id, i), line(producto, cantidad(i)))
				if err := r.deliver(t.Context(), pedidos.PedidoCreado, p, false); err != nil {
					failed.Store(err)
				}
			})
		}
		deliveries.Wait()
		require.Nil(t, failed.Load())
		taken = r.number(t, `coalesce(sum((l->>'cantidad')::int), 0) FROM descuentos, jsonb_array_elements(lineas) l
			WHERE estado = 'descontado' AND starts_with(pedido_id, $1)`, id+"-")
		require.Equal(t, stock-taken, r.stock(t, producto))
		require.Equal(t, 50, r.number(t, `(SELECT count(*) FROM descuentos WHERE estado = 'descontado' AND starts_with(pedido_id, $1))
			+ (SELECT count(*) FROM outbox WHERE tipo = 'stock.insuficiente' AND starts_with(agregado_id, $1))`, id+"-"),
			"every order is served, or told why not")
		return taken
	}
	require.Equal(t, 1, run(t, "L", "SKU-1", 1, func(int) int { return 1 }))
	for n := range 20 {
		require.GreaterOrEqual(t, run(t, fmt.Sprintf("M%d", n), fmt.Sprintf("SKU-%d", n+2), 10, func(i int) int { return 1 + i%3 }), 8)
	}
}

func TestOrdersThatNameProductsInOppositeOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.restock(t, "a", 1000)
	r.restock(t, "b", 1000)
	errs := make(chan error, 200)
	var deliveries sync.WaitGroup
	for worker := range 8 {
		deliveries.Go(func() {
			for i := range 12 {
				id := fmt.Sprintf("P-%d-%d", worker, i)
				lineas := []pedidos.Linea{line("a", 1), line("b", 1)}
				if worker%2 == 0 {
					slices.Reverse(lineas)
				}
				errs <- r.deliver(t.Context(), pedidos.PedidoCreado, order(id, lineas...), false)
				if i%2 == 0 {
					errs <- r.deliver(t.Context(), pedidos.PedidoCancelado, pedidos.Cancelado{ID: id, Motivo: "cliente"}, false)
				}
			}
		})
	}
	deliveries.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, 1000-8*6, r.stock(t, "a"))
	require.Equal(t, 1000-8*6, r.stock(t, "b"))
}

// TestAnyOrderRepetitionAndLossOfEventsConservesStock also covers C44: without
// the inbox, a replay of everything changes nothing.
func TestAnyOrderRepetitionAndLossOfEventsConservesStock(t *testing.T) {
	t.Parallel()
	r := start(t)
	var n atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		id := fmt.Sprintf("R-%d", n.Add(1))
		products := []string{id + "-a", id + "-b"}
		had, wanted := map[string]int{}, map[string]int{}
		for _, p := range products {
			had[p] = rapid.IntRange(0, 6).Draw(t, "stock")
			r.restock(t, p, had[p])
		}
		p := order(id)
		for range rapid.IntRange(1, 3).Draw(t, "lines") {
			l := line(rapid.SampledFrom(products).Draw(t, "product"), rapid.IntRange(1, 3).Draw(t, "units"))
			p.Lineas = append(p.Lineas, l)
			wanted[l.Producto] += int(l.Cantidad)
		}
		data := map[string]any{pedidos.PedidoCreado: p, pedidos.PedidoCancelado: pedidos.Cancelado{ID: id, Motivo: "cliente"}}
		types := rapid.SampledFrom([][]string{{pedidos.PedidoCreado}, {pedidos.PedidoCreado, pedidos.PedidoCancelado}}).Draw(t, "life")

		var deliveries []func() error
		for range rapid.IntRange(0, 6).Draw(t, "extra deliveries") {
			tipo, killed := rapid.SampledFrom(types).Draw(t, "type"), rapid.Bool().Draw(t, "killed")
			deliveries = append(deliveries, func() error { return r.deliver(t.Context(), tipo, data[tipo], killed) })
		}
		for _, tipo := range types { // at least once
			deliveries = append(deliveries, func() error { return r.deliver(t.Context(), tipo, data[tipo], false) })
		}
		deliveries = rapid.Permutation(deliveries).Draw(t, "order")
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

		enough := true
		for producto, units := range wanted {
			enough = enough && units <= had[producto]
		}
		held := enough && len(types) == 1
		for _, producto := range products {
			want := had[producto]
			if held {
				want -= wanted[producto]
			}
			require.Equal(t, want, r.stock(t, producto))
			out := r.number(t, `count(*) FROM outbox WHERE agregado_id = $1 AND carga->>'motivo' = 'pedido'`, producto)
			back := r.number(t, `count(*) FROM outbox WHERE agregado_id = $1 AND carga->>'motivo' = 'cancelacion'`, producto)
			require.LessOrEqual(t, out, 1)
			require.Equal(t, held && wanted[producto] > 0, out-back == 1)
			require.Equal(t, r.stock(t, producto)-had[producto], r.number(t, `
				coalesce(sum((carga->>'despues')::int - (carga->>'antes')::int), 0) FROM outbox WHERE agregado_id = $1`, producto))
		}
		refused := r.number(t, `count(*) FROM outbox WHERE agregado_id = $1`, id)
		require.LessOrEqual(t, refused, 1)
		if len(types) == 1 {
			require.Equal(t, !enough, refused == 1)
		}
		require.Equal(t, 1, r.number(t, `count(*) FROM descuentos WHERE pedido_id = $1 AND estado <> ''`, id))
	})
}

func events[T any](t *testing.T, r *rig, tipo string) (list []T) {
	t.Helper()
	rows, err := r.pool.Query(t.Context(), `SELECT carga FROM outbox WHERE tipo = $1 ORDER BY posicion`, tipo)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var raw []byte
		var e T
		require.NoError(t, rows.Scan(&raw))
		require.NoError(t, json.Unmarshal(raw, &e))
		list = append(list, e)
	}
	require.NoError(t, rows.Err())
	return list
}
