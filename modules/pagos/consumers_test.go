package pagos_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"km0/modules/pagos"
	"km0/modules/pagos/contract"
	"km0/modules/pagos/gateway"
	pedidos "km0/modules/pedidos/contract"
	"km0/platform/envelope"
)

func TestChargeKilledBeforeCommitIsFoundAgainNotRepeated(t *testing.T) {
	t.Parallel()
	r := start(t)
	p := order("P-1", "tok_ana", 1450)
	require.NoError(t, r.deliver(t.Context(), pedidos.PedidoCreado, p, killed))
	require.Zero(t, r.number(t, `(SELECT count(*) FROM pagos) + (SELECT count(*) FROM outbox)`))
	require.Equal(t, 1, r.entry(t, "P-1").Cargos)

	require.NoError(t, r.deliver(t.Context(), pedidos.PedidoCreado, p, fine))
	require.NoError(t, r.deliver(t.Context(), pedidos.PedidoCreado, p, fine))
	entry := r.entry(t, "P-1")
	require.Equal(t, 1, entry.Cargos)
	require.EqualValues(t, 2900, entry.Importe)
	pago, err := r.module.Pago(t.Context(), "P-1")
	require.NoError(t, err)
	require.Equal(t, pagos.Cobrado, pago.Estado)
	require.Equal(t, entry.Ref, pago.Ref)
	require.Equal(t, []contract.Confirmado{{PedidoID: "P-1", Importe: 2900, Ref: entry.Ref}}, events[contract.Confirmado](t, r, contract.PagoConfirmado))
	require.Equal(t, 1, r.number(t, `count(*) FROM outbox WHERE agregado_id = 'P-1' AND topico = $1`, contract.Topic))
}

func TestDeclinedCardIsRejectedOnceAndNeverCharged(t *testing.T) {
	t.Parallel()
	r := start(t)
	p := order("P-1", "tok_rechazada_9", 1450)
	for range 2 {
		require.NoError(t, r.deliver(t.Context(), pedidos.PedidoCreado, p, fine))
	}
	require.NoError(t, r.deliver(t.Context(), pedidos.PedidoCancelado, cancelled("P-1"), fine))
	require.Equal(t, []contract.Rechazado{{PedidoID: "P-1", Motivo: "tarjeta_rechazada"}}, events[contract.Rechazado](t, r, contract.PagoRechazado))
	require.Equal(t, 1, r.number(t, `count(*) FROM outbox`))
	require.Zero(t, r.entry(t, "P-1").Cargos)
}

func TestMoneyGoesBackOnceWhateverPagosKnew(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before  []fate // of the charge
		refund  []fate
		estado  pagos.Estado
		refunds int
	}{
		"charged":                     {[]fate{fine}, []fate{fine, fine}, pagos.Devuelto, 1},
		"charged, killed at refund":   {[]fate{fine}, []fate{killed, fine}, pagos.Devuelto, 1},
		"charged, refund unanswered":  {[]fate{fine}, []fate{unanswered, fine}, pagos.Devuelto, 1},
		"the answer was lost":         {[]fate{unanswered}, []fate{fine}, pagos.Devuelto, 1},
		"killed before the record":    {[]fate{killed}, []fate{fine}, pagos.Devuelto, 1},
		"never charged":               {nil, []fate{fine}, pagos.Anulado, 0},
		"the gateway was not reached": {[]fate{unreached}, []fate{unreached, fine}, pagos.Anulado, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t)
			p := order("P-1", "tok_ana", 1450)
			for _, f := range c.before {
				requireFate(t, f, r.deliver(t.Context(), pedidos.PedidoCreado, p, f))
			}
			for _, f := range c.refund {
				requireFate(t, f, r.deliver(t.Context(), pedidos.PedidoCancelado, cancelled("P-1"), f))
			}
			require.NoError(t, r.deliver(t.Context(), pedidos.PedidoCreado, p, fine), "late")
			pago, err := r.module.Pago(t.Context(), "P-1")
			require.NoError(t, err)
			require.Equal(t, c.estado, pago.Estado)
			entry := r.entry(t, "P-1")
			require.Equal(t, c.refunds, entry.Cargos)
			require.Equal(t, c.refunds, entry.Devoluciones)
			back := events[contract.Devuelto](t, r, contract.PagoDevuelto)
			require.Len(t, back, c.refunds)
			if c.refunds > 0 {
				require.Equal(t, contract.Devuelto{PedidoID: "P-1", Importe: 2900, Ref: entry.RefDevolucion}, back[0])
				require.Equal(t, entry.RefDevolucion, pago.RefDevolucion)
			}
		})
	}
}

func requireFate(t *testing.T, f fate, err error) {
	t.Helper()
	if f == unreached || f == unanswered {
		require.ErrorIs(t, err, gateway.ErrNoDisponible)
		return
	}
	require.NoError(t, err)
}

// The refund annulled the key at the gateway and was killed; then the charge runs.
func TestChargeAfterAnUnrecordedAnnulmentIsNoPayment(t *testing.T) {
	t.Parallel()
	r := start(t)
	require.NoError(t, r.deliver(t.Context(), pedidos.PedidoCancelado, cancelled("P-1"), killed))
	require.NoError(t, r.deliver(t.Context(), pedidos.PedidoCreado, order("P-1", "tok_ana", 1450), fine))
	require.NoError(t, r.deliver(t.Context(), pedidos.PedidoCancelado, cancelled("P-1"), fine))
	require.Zero(t, r.entry(t, "P-1").Cargos)
	require.Zero(t, r.number(t, `count(*) FROM outbox`))
}

func TestStopWhileTheGatewayAnswersIsNoFailureOfThePayment(t *testing.T) {
	t.Parallel()
	r := start(t)
	for tipo, datos := range map[string]any{pedidos.PedidoCreado: order("P-1", "tok_ana", 1450), pedidos.PedidoCancelado: cancelled("P-1")} {
		raw, err := json.Marshal(datos)
		require.NoError(t, err)
		tx, err := r.pool.Begin(t.Context())
		require.NoError(t, err)
		stopped, stop := context.WithCancel(t.Context())
		module := r.with(stopping{stop})
		for _, c := range module.Consumers() {
			if h := c.Handlers[tipo]; h != nil {
				err = h(stopped, tx, envelope.Event{ID: "e", Tipo: tipo, Version: 1, Datos: raw})
			}
		}
		_ = tx.Rollback(t.Context())
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, context.Canceled, err, "unclassified: the platform knows a stop when it sees one")
	}
}

// stopping is a gateway during whose call the process stops.
type stopping struct{ stop context.CancelFunc }

func (s stopping) Cobrar(ctx context.Context, _ gateway.Cobro) (gateway.Recibo, error) {
	s.stop()
	return gateway.Recibo{}, ctx.Err()
}

func (s stopping) Anular(ctx context.Context, _ string) (gateway.Devolucion, error) {
	s.stop()
	return gateway.Devolucion{}, ctx.Err()
}

// C02 and C04: what is put on the bus past the API.
func TestRogueEventsChargeNothing(t *testing.T) {
	t.Parallel()
	r := start(t)
	const good = `{"id":"P-1","cliente":"ana","mercado":"girona","tarjeta":"tok","lineas":[{"producto":"a","cantidad":1,"precio_centimos":1}]}`
	for name, datos := range map[string]string{
		"a negative quantity": strings.ReplaceAll(good, `"cantidad":1`, `"cantidad":-5`),
		"a negative price":    strings.ReplaceAll(good, `"precio_centimos":1`, `"precio_centimos":-1`),
		"2^53 + 1":            strings.ReplaceAll(good, `"precio_centimos":1`, `"precio_centimos":9007199254740993`),
		"2^63 - 1":            strings.ReplaceAll(good, `"precio_centimos":1`, `"precio_centimos":9223372036854775807`),
		"2^62, twice": strings.ReplaceAll(good, `}]`,
			`},{"producto":"a","cantidad":2,"precio_centimos":4611686018427387904},{"producto":"a","cantidad":2,"precio_centimos":4611686018427387904}]`),
		"beyond the gateway": strings.ReplaceAll(good, `[{"producto":"a","cantidad":1,"precio_centimos":1}]`,
			`[`+strings.Repeat(`{"producto":"a","cantidad":10000,"precio_centimos":10000000},`, 10)+`{"producto":"a","cantidad":1,"precio_centimos":1}]`),
		"a card number": strings.ReplaceAll(good, `"tok"`, `"4111111111111111"`),
	} {
		err := r.commit(t.Context(), fine, func(tx pgx.Tx) error {
			return r.handlers[pedidos.PedidoCreado](t.Context(), tx, envelope.Event{ID: "e", Tipo: pedidos.PedidoCreado, Version: 1, Datos: json.RawMessage(datos)})
		})
		var wrong *pedidos.FieldError
		require.ErrorAs(t, err, &wrong, name)
		require.NotContains(t, err.Error(), "4111", name)
	}
	require.Zero(t, r.number(t, `(SELECT count(*) FROM pagos) + (SELECT count(*) FROM outbox)`))
	require.Zero(t, r.entry(t, "P-1").Llamadas)
}

// TestAnyOrderRepetitionAndLossOfEventsChargesAtMostOnce also covers C44:
// without the inbox, a replay of everything charges nobody again.
func TestAnyOrderRepetitionAndLossOfEventsChargesAtMostOnce(t *testing.T) {
	t.Parallel()
	r := start(t)
	var n atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		id := fmt.Sprintf("R-%d", n.Add(1))
		tarjeta := rapid.SampledFrom([]string{"tok_ana", "tok_ana", "tok_rechazada"}).Draw(t, "card")
		p := order(id, tarjeta, int64(rapid.IntRange(1, 10_000_000).Draw(t, "price")))
		data := map[string]any{pedidos.PedidoCreado: p, pedidos.PedidoCancelado: cancelled(id)}
		types := rapid.SampledFrom([][]string{{pedidos.PedidoCreado}, {pedidos.PedidoCreado, pedidos.PedidoCancelado}}).Draw(t, "life")

		var deliveries []func() error
		for range rapid.IntRange(0, 5).Draw(t, "extra deliveries") {
			tipo, f := rapid.SampledFrom(types).Draw(t, "type"), rapid.SampledFrom([]fate{fine, killed, unreached, unanswered}).Draw(t, "fate")
			deliveries = append(deliveries, func() error {
				if err := r.deliver(t.Context(), tipo, data[tipo], f); !errors.Is(err, gateway.ErrNoDisponible) {
					return err
				}
				return nil
			})
		}
		for _, tipo := range types { // at least once
			deliveries = append(deliveries, func() error { return r.deliver(t.Context(), tipo, data[tipo], fine) })
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

		entry := r.entry(t, id)
		pago, err := r.module.Pago(t.Context(), id)
		require.NoError(t, err)
		count := func(tipo string) int {
			return r.number(t, `count(*) FROM outbox WHERE agregado_id = $1 AND tipo = $2`, id, tipo)
		}
		require.LessOrEqual(t, entry.Cargos, 1)
		require.LessOrEqual(t, count(contract.PagoConfirmado), 1)
		require.Equal(t, entry.Devoluciones, count(contract.PagoDevuelto), "one event for each refund")
		require.LessOrEqual(t, count(contract.PagoRechazado), 1)
		switch {
		case len(types) == 2:
			require.Equal(t, entry.Cargos, entry.Devoluciones, "a cancelled order costs nothing")
			require.Contains(t, []pagos.Estado{pagos.Devuelto, pagos.Anulado, pagos.Rechazado}, pago.Estado)
			require.Equal(t, entry.Devoluciones == 1, pago.Estado == pagos.Devuelto)
		case tarjeta == "tok_ana":
			require.Equal(t, 1, entry.Cargos)
			require.Equal(t, p.Total(), entry.Importe)
			require.Equal(t, pagos.Cobrado, pago.Estado)
			require.Equal(t, 1, count(contract.PagoConfirmado))
		default:
			require.Equal(t, pagos.Rechazado, pago.Estado)
			require.Equal(t, 1, count(contract.PagoRechazado))
			require.Zero(t, entry.Cargos)
		}
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
