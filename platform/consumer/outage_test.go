package consumer_test

import (
	"context"
	"errors"
	"fmt"
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

// outage is a rig whose database can be taken away.
func outage(t *testing.T, h consumer.Handler, options ...rigOption) (*rig, *testbed.Private) {
	t.Helper()
	server := testbed.PrivatePostgres(t)
	dsn := server.Database(t, testbed.Plataforma(), testbed.Set{Name: "prueba", Files: tables})
	return start(t, testbed.Pool(t, dsn), h, options...), server
}

func TestConsumptionPausesWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	r, server := outage(t, effect)
	r.acked(r.send(event("e-0", 0)))
	server.Stop(t, testbed.Immediate)

	var waiting []*message.Message
	for i := range 8 {
		waiting = append(waiting, r.send(event(fmt.Sprint("e-", i+1), i+1)))
	}
	testbed.Eventually(t, waitFor, func() bool { return r.metric("km0_consumer_paused") == 1 }, "the pause shows")
	other := event("otro", 1)
	other.Tipo = "pedido.pagado"
	r.acked(r.send(other)) // needs no database, and does not end the pause
	require.EqualValues(t, 1, r.metric("km0_consumer_paused"))

	server.Start(t)
	r.acked(waiting...)
	require.Equal(t, 9, r.count(`efectos`))
	require.Empty(t, r.letters())
	require.Zero(t, r.metric("km0_consumer_failed_attempts_total"), "no attempt")
	require.Zero(t, r.metric("km0_consumer_paused"))
	require.Equal(t, 1, r.logs.lines("consumption pauses"), "one line for a change")
	require.Equal(t, 1, r.logs.lines("consumption goes on"))
}

func TestDatabaseGoneDuringTheHandlerIsNoAttempt(t *testing.T) {
	t.Parallel()
	inHandler, goOn := make(chan struct{}, 10), make(chan struct{})
	r, server := outage(t, func(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
		inHandler <- struct{}{}
		<-goOn
		return effect(ctx, tx, e)
	})
	m := r.send(event("e-1", 1))
	<-inHandler
	server.Stop(t, testbed.Kill)
	close(goOn)
	testbed.Eventually(t, waitFor, func() bool { return r.metric("km0_consumer_paused") == 1 }, "the pause shows")
	server.Start(t)
	r.acked(m)
	require.Equal(t, 1, r.count(`efectos`))
	require.Zero(t, r.metric("km0_consumer_failed_attempts_total"))
}

func TestDeadLetterWaitsForItsDatabase(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	inHandler, goOn := make(chan struct{}, 10), make(chan struct{})
	r, server := outage(t, func(context.Context, pgx.Tx, envelope.Event) error {
		calls.Add(1)
		inHandler <- struct{}{}
		<-goOn
		return consumer.Permanent(errors.New("never"))
	})
	m := r.send(event("e-1", 1))
	<-inHandler
	server.Stop(t, testbed.Immediate)
	close(goOn)
	testbed.Eventually(t, waitFor, func() bool { return r.metric("km0_consumer_paused") == 1 }, "the pause shows")
	server.Start(t)
	r.acked(m)
	letters := r.letters()
	require.Len(t, letters, 1)
	require.Equal(t, map[string]string{envelope.HeaderClave: "P-1"}, letters[0].Headers)
}

// A pool that hands out nothing is the database's fault, not the message's.
func TestWaitingForAConnectionLongerThanTheTimeoutIsNoAttempt(t *testing.T) {
	t.Parallel()
	settings := quick()
	settings.Timeout = 50 * time.Millisecond
	r := start(t, database(t), effect, with(settings))
	var held []interface{ Release() }
	release := func() {
		for _, conn := range held {
			conn.Release()
		}
		held = nil
	}
	defer release()
	for range r.pool.Config().MaxConns {
		conn, err := r.pool.Acquire(t.Context())
		require.NoError(t, err)
		held = append(held, conn)
	}
	m := r.send(event("e-1", 1))
	testbed.Eventually(t, waitFor, func() bool { return r.metric("km0_consumer_paused") == 1 }, "the pause shows")
	release()
	r.acked(m)
	require.Zero(t, r.metric("km0_consumer_failed_attempts_total"))
}

func TestCommitWithoutAnswerIsRunAgainAndFoundDone(t *testing.T) {
	t.Parallel()
	for what, settings := range map[string]consumer.Settings{
		"alone":    {Retry: consumer.Retry{Attempts: 1}},
		"in batch": {Retry: consumer.Retry{Attempts: 1}, Batch: consumer.Batch{Size: 2, Wait: time.Second}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dsn := testbed.Postgres(t).Database(t, testbed.Plataforma(), testbed.Set{Name: "prueba", Files: tables})
			proxy := newCommitProxy(t, dsn)
			r := start(t, testbed.Pool(t, proxy.dsn), effect, with(settings))
			proxy.cut.Store(true)
			a, b := r.send(event("e-1", 1)), r.send(event("e-2", 2))
			r.acked(a, b)
			require.Equal(t, 2, r.count(`efectos`))
			require.Equal(t, 2, r.count(`mensajes_procesados`))
			require.Empty(t, r.letters())
			require.Zero(t, r.metric("km0_consumer_failed_attempts_total"))
			require.GreaterOrEqual(t, r.outcomes(consumer.Duplicado), 1)
		})
	}
}

func TestOpenCircuitPausesInsteadOfUsingUpAttempts(t *testing.T) {
	t.Parallel()
	settings := quick()
	settings.Retry.Attempts = 5
	settings.CircuitBreaker = consumer.CircuitBreaker{Failures: 2, Open: 200 * time.Millisecond}
	var calls atomic.Int64
	var ill atomic.Bool
	ill.Store(true)
	r := start(t, database(t), func(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
		calls.Add(1)
		if ill.Load() {
			return consumer.Transient(errors.New("the gateway is down"))
		}
		return effect(ctx, tx, e)
	}, with(settings))
	m := r.send(event("e-1", 1))
	testbed.Eventually(t, waitFor, func() bool { return r.metric("km0_consumer_paused") == 1 }, "the pause shows")
	require.EqualValues(t, 2, calls.Load())
	ill.Store(false)
	r.acked(m)
	require.Equal(t, 1, r.count(`efectos`))
	require.Empty(t, r.letters())
}

func TestBusinessRejectionsDoNotOpenTheCircuit(t *testing.T) {
	t.Parallel()
	settings := quick()
	settings.CircuitBreaker = consumer.CircuitBreaker{Failures: 2, Open: time.Hour}
	r := start(t, database(t), rejecting, with(settings))
	for i := range 5 {
		r.acked(r.send(event(fmt.Sprint("no-", i), i)))
	}
	r.acked(r.send(event("si-1", 1)))
	require.Equal(t, 1, r.count(`efectos`))
	require.Equal(t, 5, r.outcomes(consumer.Rechazado))
}

func TestThrottleSpacesTheStartsOfHandlers(t *testing.T) {
	t.Parallel()
	settings := quick()
	settings.Throttle = consumer.Throttle{Count: 20, Per: time.Second}
	r := start(t, database(t), effect, with(settings))
	began := time.Now()
	var ms []*message.Message
	for i := range 5 {
		ms = append(ms, r.send(event(fmt.Sprint("e-", i), i)))
	}
	r.acked(ms...)
	require.GreaterOrEqual(t, time.Since(began), 200*time.Millisecond)
}
