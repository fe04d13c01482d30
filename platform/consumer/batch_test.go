package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"km0/platform/consumer"
	"km0/platform/envelope"
)

func batched(size int, wait time.Duration) consumer.Settings {
	s := quick()
	s.Batch = consumer.Batch{Size: size, Wait: wait}
	return s
}

func sendAll(r *rig, events ...envelope.Event) []*message.Message {
	var ms []*message.Message
	for _, e := range events {
		ms = append(ms, r.send(e))
	}
	return ms
}

func numbered(n int) (events []envelope.Event) {
	for i := range n {
		events = append(events, event(fmt.Sprint("e-", i), i))
	}
	return events
}

func TestBatchSharesOneTransaction(t *testing.T) {
	t.Parallel()
	r := start(t, database(t), effect, with(batched(8, time.Second)))
	r.acked(sendAll(r, numbered(8)...)...)
	require.Equal(t, 8, r.count(`efectos`))
	require.Equal(t, 8, r.count(`mensajes_procesados`))
	require.Equal(t, 1, r.count(`(SELECT DISTINCT xmin::text FROM efectos) AS x`))
}

func TestBatchThatDoesNotFillGoesAfterItsWait(t *testing.T) {
	t.Parallel()
	r := start(t, database(t), effect, with(batched(100, 50*time.Millisecond)))
	r.acked(sendAll(r, numbered(3)...)...)
	require.Equal(t, 1, r.count(`(SELECT DISTINCT xmin::text FROM efectos) AS x`))
}

func TestBadMessageOfABatchHurtsOnlyItself(t *testing.T) {
	t.Parallel()
	for what, fail := range map[string]func(context.Context, pgx.Tx) error{
		"error":          func(context.Context, pgx.Tx) error { return consumer.Permanent(errors.New("x")) },
		"panic":          func(context.Context, pgx.Tx) error { panic("x") },
		"rejection":      func(context.Context, pgx.Tx) error { return consumer.Reject("sin_stock", errors.New("x"), nil) },
		"database error": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, `SELECT 1 / 0`); return err },
		"slow":           func(ctx context.Context, _ pgx.Tx) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			settings := batched(8, time.Second)
			settings.Timeout = 500 * time.Millisecond
			var good sync.Map
			r := start(t, database(t), func(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
				if err := effect(ctx, tx, e); err != nil {
					return err
				}
				if e.ID == "e-3" {
					return fail(ctx, tx)
				}
				n, _ := good.LoadOrStore(e.ID, new(atomic.Int64))
				n.(*atomic.Int64).Add(1)
				return nil
			}, with(settings))
			r.acked(sendAll(r, numbered(8)...)...)
			require.Equal(t, 7, r.count(`efectos`))
			require.Zero(t, r.count(`efectos WHERE id_evento = 'e-3'`))
			letters := r.letters()
			require.Len(t, letters, 1)
			require.Equal(t, "e-3", letters[0].MessageID)
			good.Range(func(id, n any) bool {
				require.LessOrEqual(t, n.(*atomic.Int64).Load(), int64(2), "%s: once in the batch, once alone", id)
				return true
			})
			require.Zero(t, r.logs.lines("consumption pauses"))
			require.EqualValues(t, letters[0].Attempts, r.metric("km0_consumer_failed_attempts_total"), "the good ones failed never")
		})
	}
}

func TestMessageThatFailedItsBatchIsTriedAgainAlone(t *testing.T) {
	t.Parallel()
	wait := time.Second
	var at []time.Time
	r := start(t, database(t), func(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
		if e.ID == "e-0" {
			return effect(ctx, tx, e)
		}
		at = append(at, time.Now())
		return consumer.Transient(errors.New("busy"))
	}, with(batched(2, wait)))
	r.acked(sendAll(r, numbered(2)...)...)
	require.Len(t, at, 4, "in the batch, alone in the first attempt, and in two more attempts")
	require.Less(t, at[3].Sub(at[1]), 2*wait, "it waits for no batch")
}

func TestBatchWhoseCommitFailsIsDoneOneByOne(t *testing.T) {
	t.Parallel()
	pool := database(t)
	_, err := pool.Exec(t.Context(), `CREATE TABLE unicos (n INTEGER UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
	require.NoError(t, err)
	r := start(t, pool, func(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
		if err := effect(ctx, tx, e); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO unicos SELECT CASE WHEN $1 IN ('e-1', 'e-2') THEN 1 END`, e.ID)
		return err
	}, with(batched(4, time.Second)))
	r.acked(sendAll(r, numbered(4)...)...)
	require.Equal(t, 3, r.count(`efectos`))
	require.Len(t, r.letters(), 1)
}

func TestSameIDTwiceInABatchIsOneEffectAndOneDuplicate(t *testing.T) {
	t.Parallel()
	r := start(t, database(t), effect, with(batched(2, time.Second)))
	e := event("e-1", 1)
	r.acked(sendAll(r, e, e)...)
	require.Equal(t, 1, r.count(`efectos`))
	require.Equal(t, 1, r.outcomes(consumer.Procesado))
	require.Equal(t, 1, r.outcomes(consumer.Duplicado))
}

// Whatever comes, in whatever grouping: each id that can be processed has one
// effect, each other one dead letter, and the inbox knows exactly the first.
func TestBatchesAndInboxHaveEachEffectOnce(t *testing.T) {
	t.Parallel()
	pool := database(t)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		settings := batched(rapid.IntRange(2, 6).Draw(rt, "size"), time.Millisecond)
		kinds := rapid.SliceOfN(rapid.SampledFrom([]string{"good", "good", "permanent", "once", "panic once"}), 1, 6).Draw(rt, "kinds")
		order := rapid.SliceOfN(rapid.IntRange(0, len(kinds)-1), 1, 15).Draw(rt, "order")
		var calls sync.Map
		r := start(t, pool, func(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
			if err := effect(ctx, tx, e); err != nil {
				return err
			}
			var i, of int
			_, _ = fmt.Sscanf(e.ID, "r%d-%d", &of, &i)
			_, again := calls.LoadOrStore(e.ID, true)
			switch kind := kinds[i]; {
			case kind == "permanent":
				return consumer.Permanent(errors.New("never"))
			case kind == "once" && !again:
				return errors.New("once")
			case kind == "panic once" && !again:
				panic("once")
			}
			return nil
		}, with(settings))
		sent := map[int]bool{}
		var ms []*message.Message
		for _, i := range order {
			sent[i] = true
			ms = append(ms, r.send(event(fmt.Sprintf("r%d-%d", round, i), i)))
		}
		r.acked(ms...)
		require.NoError(rt, r.stop(10*time.Second))
		for i := range sent {
			id, effects := fmt.Sprintf("r%d-%d", round, i), 1
			if kinds[i] == "permanent" {
				effects = 0
			}
			require.Equal(rt, effects, r.count(`efectos WHERE id_evento = $1`, id), id)
			require.Equal(rt, effects, r.count(`mensajes_procesados WHERE id_mensaje = $1`, id), id)
			require.Equal(rt, 1-effects, r.count(`mensajes_muertos WHERE id_mensaje = $1`, id), id)
		}
	})
}
