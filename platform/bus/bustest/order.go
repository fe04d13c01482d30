package bustest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

const (
	keys    = 40
	perKey  = 25
	readers = 3
)

// publishAll publishes perKey events of each key from several goroutines, each
// key from one.
func publishAll(t testing.TB, pub message.Publisher) (wait func()) {
	var done sync.WaitGroup
	for p := range 8 {
		done.Go(func() {
			for n := 1; n <= perKey; n++ {
				for k := p; k < keys; k += 8 {
					if err := pub.Publish(topic, event(fmt.Sprint("k", k), n)); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	return done.Wait
}

// handle handles each message on a goroutine of its own, as Watermill's router
// does, until the subscription ends.
func (r reading) handle(t testing.TB, rec *record, work func() bool) (wait func()) {
	var running sync.WaitGroup
	running.Go(func() {
		for m := range r.out {
			running.Go(func() {
				rec.begin(t, m)
				rec.end(t, m, work())
			})
		}
	})
	return running.Wait
}

func orderUnderCompetition(t *testing.T, h Harness) {
	rec := newRecord()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, seed))
	work := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(30) > 0
	}
	first := h.Open()
	declare(t, first, "inventario")
	published := publishAll(t, first.Publisher())
	subscribe(t, first, "inventario", 16).handle(t, rec, work)
	for range readers - 1 { // they join while it runs
		subscribe(t, h.Open(), "inventario", 16).handle(t, rec, work)
	}
	published()
	require.Eventually(t, func() bool { return rec.count() == keys*perKey }, patience, 10*time.Millisecond)
	rec.requireOrder(t)
	require.Empty(t, rec.overlaps, "two messages of a key in flight")
}

func closedInTheMiddle(t *testing.T, h Harness) {
	rec := newRecord()
	first, second := h.Open(), h.Open()
	declare(t, first, "inventario")
	publishAll(t, first.Publisher())()
	stays := subscribe(t, second, "inventario", 16)
	leaves := subscribe(t, first, "inventario", 16)
	leaves.handle(t, rec, func() bool { return true })
	stays.handle(t, rec, func() bool {
		time.Sleep(time.Millisecond) // leave something to the other
		return true
	})
	require.Eventually(t, func() bool { return rec.count() > keys*perKey/3 }, patience, time.Millisecond)
	require.NoError(t, leaves.sub.Close())
	require.Eventually(t, func() bool { return rec.count() == keys*perKey }, patience, 10*time.Millisecond)
	rec.requireOrder(t)
}

func oneInFlight(t *testing.T, h Harness) {
	d := h.Open()
	declare(t, d, "inventario")
	publish(t, d, event("a", 1), event("a", 2), event("b", 1))
	r := subscribe(t, d, "inventario", 16)
	got := map[string]*message.Message{}
	for range 2 {
		m := r.next(t)
		got[m.UUID] = m
	}
	require.Contains(t, got, "a/1")
	require.Contains(t, got, "b/1", "another key must not wait")
	r.nothing(t)
	got["a/1"].Ack()
	m := r.next(t)
	require.Equal(t, "a/2", m.UUID)
	m.Ack()
	got["b/1"].Ack()
}

func badMessage(t *testing.T, h Harness) {
	d := h.Open()
	declare(t, d, "inventario")
	publish(t, d, event("mala", 1), event("mala", 2))
	for k := range 50 {
		publish(t, d, event(fmt.Sprint("k", k), 1))
	}
	r := subscribe(t, d, "inventario", 16)
	others, bad := 0, 0
	for others < 50 || bad < 2 {
		m := r.next(t)
		switch m.UUID {
		case "mala/1":
			bad++
			m.Nack()
		case "mala/2":
			t.Fatal("delivered past the bad message of its key")
		default:
			others++
			m.Ack()
		}
	}
}
