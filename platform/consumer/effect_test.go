package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"km0/platform/consumer"
	"km0/platform/envelope"
)

func TestEveryEventTwiceLeavesTheSameStateAsOnce(t *testing.T) {
	t.Parallel()
	r := start(t, database(t), effect)
	for i := range 20 {
		e := event(fmt.Sprint("e-", i), i)
		r.acked(r.send(e))
		r.acked(r.send(e))
	}
	require.Equal(t, 20, r.count(`efectos`))
	require.Equal(t, 20, r.count(`mensajes_procesados WHERE consumidor = $1`, name))
	require.Equal(t, 20, r.outcomes(consumer.Procesado))
	require.Equal(t, 20, r.outcomes(consumer.Duplicado))
}

func TestFiftyIDsInHundredFiftyDeliveriesUnderErrorsAndPanicsHaveFiftyEffects(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	failing := func(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
		if err := effect(ctx, tx, e); err != nil {
			return err
		}
		switch n := calls.Add(1); {
		case n%7 == 0:
			panic("after the effect")
		case n%3 == 0:
			return errors.New("after the effect")
		}
		return nil
	}
	settings := quick()
	settings.Retry.Attempts = 50
	r := start(t, database(t), failing, with(settings), func(_ *consumer.Consumer, router *message.Router) {
		router.AddMiddleware(middleware.Recoverer, middleware.RandomFail(0.1), middleware.RandomPanic(0.1), middleware.Duplicator)
	})
	var deliveries sync.WaitGroup
	for i := range 150 {
		m := newMessage(t, event(fmt.Sprint("e-", i%50), i%50))
		deliveries.Go(func() { r.process(m) })
	}
	deliveries.Wait()
	require.Equal(t, 50, r.count(`efectos`))
	require.Equal(t, 50, r.count(`(SELECT DISTINCT id_evento FROM efectos) AS d`))
	require.Equal(t, 50, r.count(`mensajes_procesados`))
	require.Empty(t, r.letters())
	require.Equal(t, 50, r.outcomes(consumer.Procesado))
}

func TestFailureAfterTheEffectLeavesNeitherEffectNorInboxRow(t *testing.T) {
	t.Parallel()
	for what, fail := range map[string]func() error{
		"error": func() error { return consumer.Permanent(errors.New("no")) },
		"panic": func() error { panic("no") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := start(t, database(t), func(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
				if err := effect(ctx, tx, e); err != nil {
					return err
				}
				return fail()
			})
			r.acked(r.send(event("e-1", 1)))
			require.Zero(t, r.count(`efectos`))
			require.Zero(t, r.count(`mensajes_procesados`))
			require.Len(t, r.letters(), 1)
			require.Eventually(t, func() bool { return r.pool.Stat().AcquiredConns() == 0 }, waitFor, tick)
		})
	}
}

// A failed statement leaves a transaction that COMMIT rolls back without an
// error of PostgreSQL.
func TestHandlerThatSwallowsADatabaseErrorIsNotTakenForDone(t *testing.T) {
	t.Parallel()
	r := start(t, database(t), func(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
		_, _ = tx.Exec(ctx, `SELECT 1 / 0`)
		return nil
	})
	r.acked(r.send(event("e-1", 1)))
	require.Zero(t, r.count(`mensajes_procesados`))
	require.Len(t, r.letters(), 1)
}

func TestOtherTypesAreAcknowledgedWithoutATransaction(t *testing.T) {
	t.Parallel()
	pool := database(t)
	r := start(t, pool, effect)
	pool.Close() // a transaction could not even begin
	e := event("e-1", 1)
	e.Tipo = "pedido.pagado"
	r.acked(r.send(e))
	require.Equal(t, 1, r.outcomes(consumer.Ignorado))
}

func TestSameIDWithOtherContentIsADeadLetterAndNoDuplicate(t *testing.T) {
	t.Parallel()
	r := start(t, database(t), effect)
	r.acked(r.send(event("e-1", 1)))
	r.acked(r.send(event("e-1", 2)))
	require.Equal(t, 1, r.count(`efectos`))
	require.Zero(t, r.outcomes(consumer.Duplicado))
	require.EqualValues(t, 1, r.metric("km0_consumer_reused_ids_total"))
	letters := r.letters()
	require.Len(t, letters, 1)
	require.EqualValues(t, "datos", letters[0].Class)
	require.Contains(t, letters[0].Reason, "another content")
	require.Contains(t, string(letters[0].Body), `{"n":2}`)
}

func TestCorrelationOfTheMessageReachesTheHandler(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"c-1": "c-1", "": "e-1", "no\x00text": "e-1", "\xff\xfe": "e-1", "two\nlines": "e-1",
	} {
		t.Run(fmt.Sprintf("%q", header), func(t *testing.T) {
			t.Parallel()
			got := make(chan string, 1)
			r := start(t, database(t), func(ctx context.Context, _ pgx.Tx, _ envelope.Event) error {
				got <- envelope.Correlation(ctx)
				return nil
			})
			m := newMessage(t, event("e-1", 1))
			m.Metadata.Set(envelope.HeaderCorrelation, header)
			r.acked(r.deliver(m))
			require.Equal(t, want, <-got)
		})
	}
}
