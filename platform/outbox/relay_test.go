package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"km0/platform/bus"
	"km0/platform/bus/memory"
	"km0/platform/keyed"
	"km0/platform/outbox"
)

const (
	wait = 30 * time.Second
	tick = 10 * time.Millisecond
)

func TestSeveralRelaysNeverSwapTwoEventsOfAKey(t *testing.T) {
	for _, relays := range []int{2, 4} {
		t.Run(fmt.Sprint(relays, " relays"), func(t *testing.T) {
			f := newFixture(t)
			const keys, each = 300, 67
			f.fill(t, keys, each)
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			var mu sync.Mutex
			random := rand.New(rand.NewPCG(seed, seed))
			s := newSink()
			s.refuse = func(*message.Message) error {
				mu.Lock()
				defer mu.Unlock()
				if random.IntN(1000) == 0 {
					return errors.New("the bus is away for a moment")
				}
				return nil
			}
			for range relays {
				f.relay(t, s.into)
			}
			require.Eventually(t, func() bool { return f.count(t, pending) == 0 }, 2*wait, 50*time.Millisecond)
			require.Equal(t, keys*each, s.distinct())
			s.requireOrder(t)
		})
	}
}

func TestAnEventCommittedLateIsDeliveredAndARollbackStallsNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := newSink()
	f.relay(t, s.into)
	late, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, f.outbox.Publish(t.Context(), outbox.Tx(late), event("tarde", 1)))
	for i := range 100 {
		f.publish(t, event(fmt.Sprint("P-", i), 1))
	}
	require.Eventually(t, func() bool { return s.distinct() == 100 && f.count(t, pending) == 0 }, wait, tick)
	require.NotContains(t, s.keys(), "tarde")
	require.NoError(t, late.Commit(t.Context()))
	require.Eventually(t, func() bool { return strings.Contains(s.keys(), "tarde") }, 10*time.Second, tick)
}

func TestTwentyWritersThatCommitWhenTheyLikeLoseNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := newSink()
	f.relay(t, s.into)
	var writers sync.WaitGroup
	var committed atomic.Int64
	for w := range 20 {
		writers.Go(func() {
			for n := range 5 {
				tx, err := f.pool.Begin(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				ghost := rand.IntN(4) == 0
				key := fmt.Sprint("P-", w, "-", n)
				if ghost {
					key = "fantasma"
				}
				if err := f.outbox.Publish(t.Context(), outbox.Tx(tx), event(key, 1)); err != nil {
					t.Error(err)
				}
				time.Sleep(rand.N(500 * time.Millisecond)) // the writer's own work
				if ghost {
					_ = tx.Rollback(t.Context())
					continue
				}
				if err := tx.Commit(t.Context()); err != nil {
					t.Error(err)
				}
				committed.Add(1)
			}
		})
	}
	writers.Wait()
	require.Eventually(t, func() bool { return s.distinct() == int(committed.Load()) }, 10*time.Second, tick)
	require.NotContains(t, s.keys(), "fantasma")
}

func TestARefusedEventIsSetAsideItsKeyWaitsAndOthersGoOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d := memory.Open(memory.Config{MaxBytes: 1 << 20})
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	require.NoError(t, d.Declare(t.Context(), bus.Topology{Subscriptions: []bus.Subscription{{Consumer: "c", Topic: topic}}}))
	_, err := f.pool.Exec(t.Context(), `
		INSERT INTO outbox (id, agregado, agregado_id, tipo, carga, topico, cabeceras, carril)
		VALUES (gen_random_uuid(), 'pedido', 'P-grande', 'pedido.creado', jsonb_build_object('relleno', repeat('x', 2000000)), $1, '{"clave":"P-grande"}', $2),
		       (gen_random_uuid(), 'pedido', 'P-roto', 'pedido.creado', '{}', $1, '["no headers"]', $3),
		       (gen_random_uuid(), 'pedido', 'P-grande', 'pedido.pagado', '{}', $1, '{"clave":"P-grande"}', $2)`,
		topic, keyed.Lane("P-grande"), keyed.Lane("P-roto"))
	require.NoError(t, err)
	f.relay(t, func(cfg *outbox.RelayConfig) { cfg.Publisher = d.Publisher() })
	for i := range 100 {
		f.publish(t, event(fmt.Sprint("P-", i), 1))
	}
	lag := func() int64 {
		lags, err := d.Lag(t.Context())
		require.NoError(t, err)
		return lags["c"].Messages
	}
	require.Eventually(t, func() bool { return lag() == 100 && f.count(t, "apartado_en IS NOT NULL") == 2 }, wait, tick)
	for key, says := range map[string]string{"P-grande": "at most 1048576", "P-roto": "no object of strings"} {
		var reason string
		require.NoError(t, f.pool.QueryRow(t.Context(), `SELECT motivo FROM outbox WHERE agregado_id = $1 AND apartado_en IS NOT NULL`, key).Scan(&reason))
		require.Contains(t, reason, says)
	}
	require.Eventually(t, func() bool { // what was confirmed is marked a little later
		state, err := f.outbox.Lag(t.Context())
		return err == nil && state.SetAside == 2 && state.Pending == 3
	}, wait, tick)
	require.Never(t, func() bool { return lag() > 100 }, 1500*time.Millisecond, tick, // longer than a look at the whole table takes to come
		"a later event of the key went past the one set aside")

	// The operator shortens it and gives it another try: the key goes on. A try
	// that meets the copy a relay still has in memory is set aside once more.
	require.Eventually(t, func() bool {
		_, err := f.pool.Exec(t.Context(), `
			UPDATE outbox SET carga = '{}', apartado_en = NULL, motivo = NULL
			WHERE agregado_id = 'P-grande' AND apartado_en IS NOT NULL`)
		return err == nil && lag() == 102
	}, wait, tick)
}

func TestABusThatGoesAwayCostsNoEventNoOrderAndTwoLines(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := newSink()
	var away atomic.Bool
	away.Store(true)
	var tries atomic.Int64
	s.refuse = func(*message.Message) error {
		if away.Load() {
			tries.Add(1)
			return errors.New("connection refused")
		}
		return nil
	}
	var log lines
	f.fill(t, 20, 10)
	f.relay(t, func(cfg *outbox.RelayConfig) {
		s.into(cfg)
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	require.Eventually(t, func() bool { return tries.Load() > 60 }, wait, tick)
	require.Zero(t, s.distinct())
	away.Store(false)
	require.Eventually(t, func() bool { return f.count(t, pending) == 0 }, wait, tick)
	require.Equal(t, 200, s.distinct())
	s.requireOrder(t)
	require.Equal(t, 1, log.count("does not take events"))
	require.Equal(t, 1, log.count("takes events again"))
	require.Zero(t, log.count("destination_topic"), "a payload was logged")
}

type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

func TestAfterStopNothingIsInFlightAndAllThatWasConfirmedIsMarked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.fill(t, 100, 50)
	s := newSink()
	s.refuse = func(*message.Message) error { time.Sleep(time.Millisecond); return nil }
	r := f.relay(t, s.into)
	require.Eventually(t, func() bool { return s.distinct() > 500 }, wait, time.Millisecond)
	stop(t, r)
	confirmed := s.distinct()
	require.Less(t, confirmed, 5000)
	require.Equal(t, confirmed, f.count(t, "publicado_en IS NOT NULL"))
	require.Never(t, func() bool { return s.distinct() != confirmed }, 300*time.Millisecond, tick)

	f.relay(t, s.into)
	require.Eventually(t, func() bool { return f.count(t, pending) == 0 }, wait, tick)
	require.Len(t, s.got, 5000, "an event was published twice")
	s.requireOrder(t)
}

func TestAStopThatRunsOutOfTimeLeavesTheEventToTheNextRelay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := newSink()
	hang, began := make(chan struct{}), make(chan string, 1)
	s.refuse = func(m *message.Message) error {
		select {
		case began <- m.UUID:
		default:
		}
		<-hang
		return nil
	}
	r := f.relay(t, s.into)
	f.publish(t, event("P-1", 1))
	id := <-began
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- r.Stop(short) }()
	<-short.Done()
	time.AfterFunc(100*time.Millisecond, func() { close(hang) }) // confirmed, after the relay gave up
	require.ErrorIs(t, <-stopped, context.DeadlineExceeded)
	require.Equal(t, 1, f.count(t, pending))
	f.relay(t, s.into)
	require.Eventually(t, func() bool { return f.count(t, pending) == 0 }, wait, tick)
	require.Equal(t, map[string]int{id: 2}, s.ids, "published again under the same id")
}

// TestWakeBringsAnEventOutAtOnce: without it each event would wait for a poll.
func TestWakeBringsAnEventOutAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := newSink()
	f.relay(t, func(cfg *outbox.RelayConfig) { s.into(cfg); cfg.Poll = time.Hour })
	f.publish(t, event("P-0", 1))
	require.Eventually(t, func() bool { return s.distinct() == 1 }, wait, time.Millisecond)
	start := time.Now()
	for n := 1; n <= 10; n++ {
		f.publish(t, event(fmt.Sprint("P-", n), 1))
		require.Eventually(t, func() bool { return s.distinct() == n+1 }, wait, time.Millisecond)
	}
	require.Less(t, time.Since(start), 5*time.Second)
}
