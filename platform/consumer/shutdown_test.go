package consumer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"km0/platform/consumer"
	"km0/platform/envelope"
	"km0/platform/testbed"
)

// left checks that a message given back at a stop left no trace, and that
// another process does it.
func left(t *testing.T, r *rig) {
	t.Helper()
	require.Zero(t, r.count(`efectos`))
	require.Zero(t, r.count(`mensajes_procesados`))
	require.Empty(t, r.letters())
	require.Equal(t, 1, r.outcomes(consumer.Devuelto))
	next := start(t, r.pool, effect)
	next.acked(next.send(event("e-1", 1)))
	require.Equal(t, 1, next.count(`efectos`))
}

func TestStopLetsTheHandlerFinish(t *testing.T) {
	t.Parallel()
	inHandler, goOn := make(chan struct{}), make(chan struct{})
	r := start(t, database(t), func(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
		close(inHandler)
		<-goOn
		return errors.Join(ctx.Err(), effect(ctx, tx, e))
	})
	m := r.send(event("e-1", 1))
	<-inHandler
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop(10 * time.Second) }()
	testbed.Eventually(t, waitFor, func() bool {
		r.feed.mu.Lock()
		defer r.feed.mu.Unlock()
		return r.feed.drained
	}, "the stop has begun")
	select {
	case <-stopped:
		t.Fatal("stopped before the handler ended")
	default:
	}
	close(goOn)
	require.NoError(t, <-stopped)
	r.acked(m)
	require.Equal(t, 1, r.count(`efectos`))
}

func TestStopOutOfPatienceCancelsTheHandlerAndLeavesTheMessage(t *testing.T) {
	t.Parallel()
	for what, answer := range map[string]func(context.Context) error{
		"that passes the error on": func(ctx context.Context) error { return ctx.Err() },
		"that makes another of it": func(context.Context) error { return consumer.Permanent(errors.New("gateway gave no answer")) },
		"that panics":              func(context.Context) error { panic("no answer") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			inHandler := make(chan struct{})
			r := start(t, database(t), func(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
				if err := effect(ctx, tx, e); err != nil {
					return err
				}
				close(inHandler)
				<-ctx.Done()
				return answer(ctx)
			})
			m := r.send(event("e-1", 1))
			<-inHandler
			require.ErrorIs(t, r.stop(50*time.Millisecond), context.DeadlineExceeded)
			r.nacked(m)
			left(t, r)
		})
	}
}

func TestStopDuringARetryWaitLeavesTheMessage(t *testing.T) {
	t.Parallel()
	settings := quick()
	settings.Retry = consumer.Retry{Attempts: 2, Initial: time.Hour, Max: time.Hour}
	var calls atomic.Int64
	r := start(t, database(t), func(context.Context, pgx.Tx, envelope.Event) error {
		calls.Add(1)
		return consumer.Transient(errors.New("busy"))
	}, with(settings))
	m := r.send(event("e-1", 1))
	testbed.Eventually(t, waitFor, func() bool { return r.metric("km0_consumer_failed_attempts_total") == 1 }, "the first attempt failed")
	require.NoError(t, r.stop(10*time.Second))
	r.nacked(m)
	require.EqualValues(t, 1, calls.Load())
	left(t, r)
}

func TestStopDuringAPauseLeavesTheMessage(t *testing.T) {
	t.Parallel()
	r, server := outage(t, effect)
	server.Stop(t, testbed.Immediate)
	m := r.send(event("e-1", 1))
	testbed.Eventually(t, waitFor, func() bool { return r.metric("km0_consumer_paused") == 1 }, "the pause shows")
	require.NoError(t, r.stop(10*time.Second))
	r.nacked(m)
	server.Start(t)
	left(t, r)
}

func TestStopDuringTheThrottleLeavesTheMessage(t *testing.T) {
	t.Parallel()
	settings := quick()
	settings.Throttle = consumer.Throttle{Count: 1, Per: time.Hour}
	r := start(t, database(t), effect, with(settings))
	other := event("e-0", 1)
	other.Tipo = "pedido.pagado" // takes the first turn
	r.acked(r.send(other))
	m := r.send(event("e-1", 1))
	require.NoError(t, r.stop(10*time.Second))
	r.nacked(m)
	left(t, r)
}

func TestStopDuringTheWaitForTheArchiveLeavesTheMessage(t *testing.T) {
	t.Parallel()
	r := start(t, database(t), func(context.Context, pgx.Tx, envelope.Event) error { return consumer.Permanent(errors.New("never")) })
	statement(t, r, `ALTER TABLE mensajes_muertos RENAME TO mensajes_perdidos`)
	m := r.send(event("e-1", 1))
	testbed.Eventually(t, waitFor, func() bool { return r.metric("km0_consumer_dead_letters_not_stored_total") == 1 }, "it could not be stored")
	require.NoError(t, r.stop(10*time.Second))
	r.nacked(m)
	statement(t, r, `ALTER TABLE mensajes_perdidos RENAME TO mensajes_muertos`)
	left(t, r)
}

func TestAStoppedConsumerLeavesNoGoroutine(t *testing.T) {
	pool := database(t)
	_ = count(t, pool, `efectos`)
	before := goleak.IgnoreCurrent()
	settings := quick()
	settings.Batch = consumer.Batch{Size: 4, Wait: time.Millisecond}
	r := start(t, pool, effect, with(settings))
	r.acked(r.send(event("e-1", 1)), r.send(event("e-2", 1)))
	require.NoError(t, r.stop(10*time.Second))
	pool.Close()
	goleak.VerifyNone(t, before)
}
