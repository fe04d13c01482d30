// Package bustest holds every bus driver to the promises of package bus: the
// same tests for each, and Watermill's own suite for transports.
//
//	func TestConformance(t *testing.T) {
//		bustest.Run(t, func(t *testing.T) bustest.Harness { ... })
//	}
package bustest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"km0/platform/bus"
	"km0/platform/envelope"
)

// Harness is one bus, empty at first.
type Harness struct {
	// Open gives a driver on the bus as a further process would have it. The
	// harness ends it with the test, after its subscribers were closed. A bus
	// that lives in one process may give the same driver again.
	Open func() bus.Driver
	// MaxBytes is the largest payload the drivers take.
	MaxBytes int
	// DueTimes says that the header no_antes holds a message back.
	DueTimes bool
}

// Run runs the suite; harness is called once per test, from its goroutine.
func Run(t *testing.T, harness func(t *testing.T) Harness) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, h Harness)
	}{
		{"EventsOfAKeyKeepTheirOrderUnderCompetitionAndNacks", orderUnderCompetition},
		{"NothingIsLostWhenASubscriberIsClosedInTheMiddle", closedInTheMiddle},
		{"OneMessageOfAKeyIsInFlight", oneInFlight},
		{"ABadMessageStopsNoOtherKey", badMessage},
		{"ALateConsumerGetsOldMessages", lateConsumer},
		{"WhatNobodySubscribedToIsKept", nobodySubscribed},
		{"EachConsumerGetsEachMessage", twoConsumers},
		{"BytesAndHeadersArriveAsTheyWere", bytesAndHeaders},
		{"AnOversizedMessageIsRefusedAndHurtsNoOther", oversized},
		{"AHandlerMayPublishToItsOwnTopic", publishInHandler},
		{"DeclareIsIdempotent", declareTwice},
		{"LagCountsWhatIsNotAcknowledged", lag},
		{"ClosingTheSubscriberClosesTheChannel", channelCloses},
		{"DrainFinishesWhatIsInFlightAndHandsOutNothingMore", drain},
		{"AMessageWaitsForItsDueTimeAndItsKeyBehindIt", dueTime},
		{"AClosedDriverAnswersPublishAtOnce", publishAfterClose},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, harness(t))
		})
	}
	runWatermill(t, harness)
}

// patience is how long the suite waits for what must come.
const patience = 30 * time.Second

// quiet is how long it watches for what must not come; drivers look at their
// tables about four times in it.
const quiet = time.Second

const topic = "pedidos.eventos"

// event is a message of a key; n counts from 1 within the key.
func event(key string, n int) *message.Message {
	m := message.NewMessage(fmt.Sprint(key, "/", n), []byte(`{}`))
	m.Metadata.Set(envelope.HeaderClave, key)
	return m
}

func split(t testing.TB, id string) (key string, n int) {
	t.Helper()
	key, number, _ := strings.Cut(id, "/")
	n, err := strconv.Atoi(number)
	require.NoError(t, err)
	return key, n
}

// reading is one subscription of a consumer in one process.
type reading struct {
	sub bus.Subscriber
	out <-chan *message.Message
}

func subscribe(t testing.TB, d bus.Driver, consumer string, concurrency int) reading {
	t.Helper()
	sub, err := d.Subscriber(bus.Subscription{Consumer: consumer, Topic: topic, Concurrency: concurrency})
	require.NoError(t, err)
	out, err := sub.Subscribe(context.Background(), topic)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	return reading{sub, out}
}

func (r reading) next(t testing.TB) *message.Message {
	t.Helper()
	select {
	case m, open := <-r.out:
		require.True(t, open, "the channel was closed")
		return m
	case <-time.After(patience):
		t.Fatalf("nothing was delivered in %s", patience)
		return nil
	}
}

func (r reading) nothing(t testing.TB) {
	t.Helper()
	select {
	case m, open := <-r.out:
		require.True(t, open, "the channel was closed")
		t.Fatalf("%s was delivered", m.UUID)
	case <-time.After(quiet):
	}
}

func publish(t testing.TB, d bus.Driver, messages ...*message.Message) {
	t.Helper()
	require.NoError(t, d.Publisher().Publish(topic, messages...))
}

func declare(t testing.TB, d bus.Driver, consumers ...string) {
	t.Helper()
	require.NoError(t, d.Declare(t.Context(), topology(consumers...)))
}

func topology(consumers ...string) bus.Topology {
	top := bus.Topology{Topics: []bus.Topic{{Name: topic}}}
	for _, c := range consumers {
		top.Subscriptions = append(top.Subscriptions, bus.Subscription{Consumer: c, Topic: topic})
	}
	return top
}

// record notes what handlers see, whichever process they run in.
type record struct {
	mu       sync.Mutex
	acked    map[string]int // highest n of a key that was acknowledged
	inFlight map[string]int
	swaps    []string
	overlaps []string
	done     map[string]bool // ids
}

func newRecord() *record {
	return &record{acked: map[string]int{}, inFlight: map[string]int{}, done: map[string]bool{}}
}

// begin notes a delivery. One that comes before its predecessor was
// acknowledged is a swap.
func (r *record) begin(t testing.TB, m *message.Message) {
	key, n := split(t, m.UUID)
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > r.acked[key]+1 {
		r.swaps = append(r.swaps, m.UUID)
	}
	if r.inFlight[key]++; r.inFlight[key] > 1 {
		r.overlaps = append(r.overlaps, m.UUID)
	}
}

func (r *record) end(t testing.TB, m *message.Message, ok bool) {
	key, n := split(t, m.UUID)
	r.mu.Lock()
	r.inFlight[key]--
	if ok {
		r.acked[key] = max(r.acked[key], n)
		r.done[m.UUID] = true
	}
	r.mu.Unlock()
	if ok {
		m.Ack()
	} else {
		m.Nack()
	}
}

func (r *record) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.done)
}

func (r *record) requireOrder(t testing.TB) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Empty(t, r.swaps, "delivered before their predecessor was acknowledged")
}
