package keyed_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"km0/platform/keyed"
	"km0/platform/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

func TestManyReadersNeverSwapTwoRowsOfOneKey(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	const keys, each = 200, 50
	for n := 1; n <= each; n++ {
		_, err := q.pool.Exec(t.Context(), `INSERT INTO cola (clave, n, carril)
			SELECT k, $1, l FROM unnest($2::text[], $3::int2[]) u(k, l)`, n, names(keys), lanes(keys))
		require.NoError(t, err)
	}
	rec := newRecorder()
	for range 4 {
		p := q.start(t, 64)
		go func() {
			for m := range p.out {
				go rec.handle(m, func() bool { return rand.IntN(50) > 0 })
			}
		}()
	}
	require.Eventually(t, func() bool { return q.pending(t) == 0 }, 60*time.Second, 20*time.Millisecond)
	require.Zero(t, rec.swaps.Load(), "swaps")
	require.Zero(t, rec.overlaps.Load(), "two rows of one key in flight")
	require.GreaterOrEqual(t, rec.deliveries.Load(), int64(keys*each))
}

func names(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprint("k", i))
	}
	return list
}

func lanes(n int) (list []int16) {
	for _, name := range names(n) {
		list = append(list, keyed.Lane(name))
	}
	return list
}

func TestRowCommittedLateIsDelivered(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	p := q.start(t, 16)
	tx, err := q.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `INSERT INTO cola (clave, n, carril) VALUES ('tarde', 1, $1)`, keyed.Lane("tarde"))
	require.NoError(t, err)
	for i := range 100 {
		q.add(t, fmt.Sprint("k", i), 1)
	}
	for range 100 {
		m := <-p.out
		require.NotEqual(t, "tarde/1", m.UUID)
		m.Ack()
	}
	require.Eventually(t, func() bool { return q.pending(t) == 0 }, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, tx.Commit(t.Context()))
	m := receive(t, p)
	require.Equal(t, "tarde/1", m.UUID)
	m.Ack()
}

func receive(t testing.TB, p *process) *message.Message {
	t.Helper()
	select {
	case m := <-p.out:
		return m
	case <-time.After(10 * time.Second):
		t.Fatal("nothing was handed out in 10 s")
		return nil
	}
}

func TestNackedRowComesBackBeforeTheNextOfItsKeyAndStopsNoOther(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.add(t, "a", 1)
	q.add(t, "a", 2)
	p := q.start(t, 16)
	m := receive(t, p)
	require.Equal(t, "a/1", m.UUID)
	m.Nack()
	q.add(t, "b", 1)
	p.sub.Wake()
	var got []string
	for len(got) < 3 {
		m := receive(t, p)
		got = append(got, m.UUID)
		m.Ack()
	}
	require.Contains(t, got, "b/1")
	a := []string{}
	for _, id := range got {
		if id != "b/1" {
			a = append(a, id)
		}
	}
	require.Equal(t, []string{"a/1", "a/2"}, a)
}

func TestRefusedRowIsSetAsideItsKeyWaitsAndOthersGoOn(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	q.add(t, "a", 1)
	q.add(t, "a", 2)
	p := q.start(t, 16)
	m := receive(t, p)
	keyed.Refuse(m.Context(), fmt.Errorf("too large"))
	m.Nack()
	q.add(t, "b", 1)
	m = receive(t, p)
	require.Equal(t, "b/1", m.UUID)
	m.Ack()
	require.Eventually(t, func() bool { return q.pending(t) == 2 }, 5*time.Second, 10*time.Millisecond)
	var reason string
	require.NoError(t, q.pool.QueryRow(t.Context(), `SELECT motivo FROM cola WHERE clave='a' AND n=1`).Scan(&reason))
	require.Equal(t, "too large", reason)
	select {
	case m := <-p.out:
		t.Fatalf("%s was handed out past the row set aside", m.UUID)
	case <-time.After(1500 * time.Millisecond): // longer than a sweep
	}
	_, err := q.pool.Exec(t.Context(), `UPDATE cola SET motivo = NULL`)
	require.NoError(t, err)
	m = receive(t, p)
	require.Equal(t, "a/1", m.UUID)
	m.Ack()
	m = receive(t, p)
	require.Equal(t, "a/2", m.UUID)
	m.Ack()
}

func TestHotKeyStopsNoOther(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	_, err := q.pool.Exec(t.Context(), `INSERT INTO cola (clave, n, carril) SELECT 'hot', n, $1 FROM generate_series(1, 5000) n`, keyed.Lane("hot"))
	require.NoError(t, err)
	for i := range 100 {
		q.add(t, fmt.Sprint("k", i), 1)
	}
	p := q.start(t, 16)
	rec := newRecorder()
	cold := make(chan struct{}, 200)
	go func() {
		for m := range p.out {
			go rec.handle(m, func() bool {
				if key, _ := split(m.UUID); key != "hot" {
					cold <- struct{}{}
				}
				return true
			})
		}
	}()
	for range 100 {
		select {
		case <-cold:
		case <-time.After(10 * time.Second):
			t.Fatal("a cold key waits behind the hot one")
		}
	}
	require.Eventually(t, func() bool { return q.pending(t) == 0 }, 30*time.Second, 20*time.Millisecond)
	require.Zero(t, rec.swaps.Load())
}

func TestAReaderThatJoinsTakesItsShareAndGivesItBack(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	first := q.start(t, 64)
	q.add(t, "k0", 1)
	receive(t, first).Ack()
	second := q.start(t, 64)
	got := map[*process]int{}
	var mu sync.Mutex
	for _, p := range []*process{first, second} {
		go func() {
			for m := range p.out {
				mu.Lock()
				got[p]++
				mu.Unlock()
				m.Ack()
			}
		}()
	}
	n := 0
	require.Eventually(t, func() bool {
		for _, name := range names(64) {
			n++
			q.add(t, name, n)
		}
		mu.Lock()
		defer mu.Unlock()
		return got[second] > 0
	}, 20*time.Second, 100*time.Millisecond)
	second.stop()
	require.Eventually(t, func() bool { return q.pending(t) == 0 }, 20*time.Second, 20*time.Millisecond)
}

func TestLostSessionCostsNoRowAndNoOrder(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	p := q.start(t, 64)
	rec := newRecorder()
	go func() {
		for m := range p.out {
			go rec.handle(m, func() bool { return true })
		}
	}()
	for n := 1; n <= 40; n++ {
		_, err := q.pool.Exec(t.Context(), `INSERT INTO cola (clave, n, carril)
			SELECT k, $1, l FROM unnest($2::text[], $3::int2[]) u(k, l)`, n, names(50), lanes(50))
		require.NoError(t, err)
		if n%10 == 0 {
			_, err := q.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND query NOT LIKE '%cola%'`)
			require.NoError(t, err)
		}
	}
	require.Eventually(t, func() bool { return q.pending(t) == 0 }, 30*time.Second, 20*time.Millisecond)
	require.Zero(t, rec.swaps.Load())
}

func TestDrainFinishesWhatIsInFlightAndHandsOutNothingMore(t *testing.T) {
	q := newQueue(t)
	before := goleak.IgnoreCurrent()
	q.add(t, "a", 1)
	q.add(t, "a", 2)
	p := q.start(t, 16)
	m := receive(t, p)
	drained := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		drained <- p.sub.Drain(ctx)
	}()
	select {
	case err := <-drained:
		t.Fatalf("drained with a message in flight: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	require.NoError(t, m.Context().Err())
	m.Ack()
	require.NoError(t, <-drained)
	require.Equal(t, 1, q.pending(t))
	p.stop()
	_, open := <-p.out
	require.False(t, open)
	goleak.VerifyNone(t, before)
}
