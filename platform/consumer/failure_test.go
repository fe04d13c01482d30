package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"km0/platform/consumer"
	"km0/platform/envelope"
	"km0/platform/testbed"
)

const (
	waitFor = 10 * time.Second
	tick    = 5 * time.Millisecond
)

func TestErrorClassesDecideAttemptsAndClassOfTheDeadLetter(t *testing.T) {
	t.Parallel()
	deadlock := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DO $$ BEGIN RAISE EXCEPTION 'collided' USING ERRCODE = '40P01'; END $$`)
		return err
	}
	for what, c := range map[string]struct {
		fail     func(context.Context, pgx.Tx) error
		class    string
		attempts int
	}{
		"transient":    {func(context.Context, pgx.Tx) error { return consumer.Transient(errors.New("x")) }, "transitorio_agotado", 3},
		"permanent":    {func(context.Context, pgx.Tx) error { return consumer.Permanent(errors.New("x")) }, "datos", 1},
		"wrapped":      {func(context.Context, pgx.Tx) error { return fmt.Errorf("a: %w", consumer.Permanent(errors.New("x"))) }, "datos", 1},
		"contract":     {func(context.Context, pgx.Tx) error { return consumer.Contract(errors.New("x")) }, "contrato", 1},
		"rejection":    {func(context.Context, pgx.Tx) error { return consumer.Reject("sin_stock", errors.New("x"), nil) }, "negocio", 1},
		"unclassified": {func(context.Context, pgx.Tx) error { return errors.New("x") }, "fallo", 3},
		"panic":        {func(context.Context, pgx.Tx) error { panic("x") }, "fallo", 3},
		"deadlock":     {deadlock, "transitorio_agotado", 3},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			r := start(t, database(t), func(ctx context.Context, tx pgx.Tx, _ envelope.Event) error {
				calls.Add(1)
				return c.fail(ctx, tx)
			})
			r.acked(r.send(event("e-1", 1)))
			letters := r.letters()
			require.Len(t, letters, 1)
			require.EqualValues(t, c.class, letters[0].Class)
			require.Equal(t, c.attempts, letters[0].Attempts)
			require.EqualValues(t, c.attempts, calls.Load())
			require.EqualValues(t, c.attempts, r.metric("km0_consumer_failed_attempts_total", c.class))
			require.NotContains(t, letters[0].Reason, "goroutine")
			if what == "panic" {
				require.Equal(t, "panic: x", letters[0].Reason)
				require.Contains(t, letters[0].Error, "failure_test.go", "the stack")
			}
		})
	}
}

func TestTransientFailureIsCuredByTheNextAttemptAfterItsWait(t *testing.T) {
	t.Parallel()
	settings := quick()
	settings.Retry = consumer.Retry{Attempts: 3, Initial: 100 * time.Millisecond, Max: time.Second, Multiplier: 2, Jitter: 0.1}
	var at []time.Time
	r := start(t, database(t), func(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
		at = append(at, time.Now())
		if len(at) < 3 {
			return consumer.Transient(errors.New("busy"))
		}
		return effect(ctx, tx, e)
	}, with(settings))
	r.acked(r.send(event("e-1", 1)))
	require.Equal(t, 1, r.count(`efectos`))
	require.Empty(t, r.letters())
	require.GreaterOrEqual(t, at[1].Sub(at[0]), 90*time.Millisecond)
	require.GreaterOrEqual(t, at[2].Sub(at[1]), 180*time.Millisecond)
}

func TestAttemptAfterATimeoutHasALivingContext(t *testing.T) {
	t.Parallel()
	settings := quick()
	settings.Timeout = 200 * time.Millisecond
	settings.Throttle = consumer.Throttle{Count: 1000, Per: time.Second} // it, too, lives on the context
	var calls int
	r := start(t, database(t), func(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
		if calls++; calls == 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		return effect(ctx, tx, e)
	}, with(settings))
	r.acked(r.send(event("e-1", 1)))
	require.Equal(t, 1, r.count(`efectos`))
	require.EqualValues(t, 1, r.metric("km0_consumer_failed_attempts_total"))
}

func TestDeadLetterAfterATimeoutIsStored(t *testing.T) {
	t.Parallel()
	settings := quick()
	settings.Timeout = 50 * time.Millisecond
	r := start(t, database(t), func(ctx context.Context, _ pgx.Tx, _ envelope.Event) error {
		<-ctx.Done()
		return ctx.Err()
	}, with(settings))
	r.acked(r.send(event("e-1", 1)))
	letters := r.letters()
	require.Len(t, letters, 1)
	require.EqualValues(t, "transitorio_agotado", letters[0].Class)
}

func TestMessageThatIsNoEnvelopeIsArchivedByteForByte(t *testing.T) {
	t.Parallel()
	r := start(t, database(t), effect)
	for i, body := range [][]byte{
		{}, {0, 0xff, 0xfe, 'x'}, []byte("{"), []byte(`[]`), []byte(strings.Repeat("x", 1<<20)),
		[]byte(`{"id_evento":"a\u0000b","tipo":"pedido.creado","version":1,"datos":{}}`),
	} {
		headers := message.Metadata{
			"raro": "\xff\xfe", "nulo": "a\x00b", "\xff": "name", "": "empty", `"quoted"`: "q", "con espacios": "\x1b[2J",
			"grande": strings.Repeat("h", 70_000), envelope.HeaderClave: "k\x00\xff", "reason_poisoned": "theirs",
		}
		m := message.NewMessage("id\x00\xff", body)
		m.Metadata = headers
		want := m.Copy().Metadata
		r.acked(r.deliver(m))
		letters := r.letters()
		require.Len(t, letters, i+1)
		require.True(t, string(body) == string(letters[0].Body), "body %d", i)
		require.Equal(t, map[string]string(want), letters[0].Headers)
		require.EqualValues(t, "datos", letters[0].Class)
		require.Equal(t, 1, letters[0].Attempts)
	}
	r.acked(r.send(event("e-1", 1)))
	require.Equal(t, 1, r.count(`efectos`), "the next one goes on")
}

func TestRejectionIsOneTransactionThatHappensOnce(t *testing.T) {
	t.Parallel()
	var failed atomic.Bool
	r := start(t, database(t), func(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
		if err := effect(ctx, tx, e); err != nil {
			return err
		}
		return consumer.Reject("sin_stock", errors.New("none left"), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO salida (id, carga) VALUES ($1, jsonb_build_object('c', $2::text))`, e.ID, envelope.Correlation(ctx))
			if err == nil && failed.CompareAndSwap(false, true) {
				panic("killed between the two transactions")
			}
			return err
		})
	})
	first := r.send(event("e-1", 1))
	r.nacked(first)
	require.Zero(t, r.count(`mensajes_procesados`))
	require.Zero(t, r.count(`salida`))
	require.Empty(t, r.letters())
	require.EqualValues(t, 1, r.metric("km0_consumer_dead_letters_not_stored_total"))

	for range 3 {
		r.acked(r.send(event("e-1", 1)))
	}
	require.Equal(t, 1, r.count(`mensajes_procesados`))
	require.Equal(t, 1, r.count(`salida WHERE carga ->> 'c' = 'e-1'`))
	require.Zero(t, r.count(`efectos`))
	letters := r.letters()
	require.Len(t, letters, 1)
	require.EqualValues(t, "negocio", letters[0].Class)
	require.Equal(t, "sin_stock: none left", letters[0].Reason)
	require.Equal(t, 1, r.outcomes(consumer.Rechazado))
	require.Equal(t, 2, r.outcomes(consumer.Duplicado))
}

func TestDeadLetterThatCannotBeStoredIsNeverAcknowledgedAndStopsNoOther(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	r := start(t, database(t), func(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
		if e.ID == "bad" {
			calls.Add(1)
			return consumer.Permanent(errors.New("never"))
		}
		return effect(ctx, tx, e)
	})
	statement(t, r, `ALTER TABLE mensajes_muertos RENAME TO mensajes_perdidos`)
	bad := newMessage(t, event("bad", 1))
	stored := make(chan struct{})
	began := time.Now()
	go func() { defer close(stored); r.process(bad) }()
	testbed.Eventually(t, waitFor, func() bool { return calls.Load() >= 3 }, "the bad one is tried again")
	require.GreaterOrEqual(t, time.Since(began), 2*time.Second, "at most once a second")
	for i := range 10 {
		r.acked(r.send(event(fmt.Sprint("e-", i), i)))
	}
	require.Equal(t, 10, r.count(`efectos`))
	require.GreaterOrEqual(t, r.metric("km0_consumer_dead_letters_not_stored_total"), 2.0)
	select {
	case <-stored:
		t.Fatal("acknowledged without being stored")
	default:
	}

	statement(t, r, `ALTER TABLE mensajes_perdidos RENAME TO mensajes_muertos`)
	<-stored
	letters := r.letters()
	require.Len(t, letters, 1)
	require.Equal(t, map[string]string{envelope.HeaderClave: "P-1"}, letters[0].Headers, "nothing of the failed tries")
}

func TestDeadLetterOfAMessageThatComesAgainIsStoredOnce(t *testing.T) {
	t.Parallel()
	r := start(t, database(t), func(context.Context, pgx.Tx, envelope.Event) error { return consumer.Permanent(errors.New("never")) })
	for range 3 {
		r.acked(r.send(event("e-1", 1)))
	}
	require.Len(t, r.letters(), 1)
}

func statement(t testing.TB, r *rig, sql string, args ...any) {
	t.Helper()
	_, err := r.pool.Exec(context.Background(), sql, args...)
	require.NoError(t, err)
}
