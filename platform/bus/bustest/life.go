package bustest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// publishInHandler would hang on a driver that delivers inside Publish, or
// that holds a lock meanwhile.
func publishInHandler(t *testing.T, h Harness) {
	d := h.Open()
	declare(t, d, "inventario")
	publish(t, d, event("a", 1))
	r := subscribe(t, d, "inventario", 1)
	for n := 1; n <= 10; n++ {
		m := r.next(t)
		require.Equal(t, fmt.Sprint("a/", n), m.UUID)
		publish(t, d, event("a", n+1))
		m.Ack()
	}
}

func declareTwice(t *testing.T, h Harness) {
	var all sync.WaitGroup
	for range 4 {
		d := h.Open()
		all.Go(func() {
			if err := d.Declare(t.Context(), topology("inventario", "pagos")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	d := h.Open()
	publish(t, d, event("a", 1))
	declare(t, d, "inventario", "pagos")
	r := subscribe(t, d, "inventario", 16)
	r.takeAll(t, 1)
	declare(t, d, "inventario", "pagos")
	r.nothing(t)
}

func lag(t *testing.T, h Harness) {
	d := h.Open()
	declare(t, d, "inventario", "pagos")
	lags, err := d.Lag(t.Context())
	require.NoError(t, err)
	if len(lags) == 0 {
		t.Skip("this driver cannot tell")
	}
	require.Zero(t, lags["inventario"])
	publish(t, d, event("a", 1), event("a", 2), event("b", 1))
	require.Eventually(t, func() bool {
		lags, err = d.Lag(t.Context())
		return err == nil && lags["inventario"].Messages == 3 && lags["inventario"].OldestSeconds > 0
	}, patience, 10*time.Millisecond)
	subscribe(t, d, "inventario", 16).takeAll(t, 3)
	require.Eventually(t, func() bool {
		lags, err = d.Lag(t.Context())
		return err == nil && lags["inventario"].Messages == 0 && lags["inventario"].OldestSeconds == 0
	}, patience, 10*time.Millisecond)
	require.EqualValues(t, 3, lags["pagos"].Messages)
}

func channelCloses(t *testing.T, h Harness) {
	d := h.Open()
	declare(t, d, "inventario")
	publish(t, d, event("a", 1), event("a", 2))
	r := subscribe(t, d, "inventario", 16)
	m := r.next(t)
	require.NoError(t, m.Context().Err())
	require.NoError(t, r.sub.Close())
	select {
	case _, open := <-r.out:
		require.False(t, open, "delivered after Close")
	case <-time.After(patience):
		t.Fatal("the channel is open after Close")
	}
	require.Error(t, m.Context().Err(), "the context of an abandoned message lives on")
	m.Ack() // too late, and harmless
	require.NoError(t, r.sub.Close(), "a second Close")
}

func drain(t *testing.T, h Harness) {
	d := h.Open()
	declare(t, d, "inventario")
	publish(t, d, event("a", 1), event("a", 2))
	r := subscribe(t, d, "inventario", 16)
	m := r.next(t)
	short, cancel := context.WithTimeout(t.Context(), quiet/4)
	defer cancel()
	require.ErrorIs(t, r.sub.Drain(short), context.DeadlineExceeded, "drained with a message in flight")
	require.NoError(t, m.Context().Err())
	m.Ack()
	require.NoError(t, r.sub.Drain(t.Context()))
	r.nothing(t)
	require.NoError(t, r.sub.Close())
	again := subscribe(t, h.Open(), "inventario", 16)
	require.Equal(t, []string{"a/2"}, again.takeAll(t, 1), "what was acknowledged before Drain returned came again")
}

func publishAfterClose(t *testing.T, h Harness) {
	d := h.Open()
	pub := d.Publisher()
	require.NoError(t, pub.Publish(topic, event("a", 1)))
	require.NoError(t, d.Close())
	start := time.Now()
	var all sync.WaitGroup
	for n := range 20 {
		all.Go(func() {
			if pub.Publish(topic, event("b", n+1)) == nil {
				t.Error("published on a closed driver")
			}
		})
	}
	all.Wait()
	require.Less(t, time.Since(start), 5*time.Second)
}
