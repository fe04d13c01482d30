package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"km0/platform/bus"
)

// concurrency of a subscription that names none.
const concurrency = 64

type subscriber struct {
	consumer     *consumer
	subscription bus.Subscription

	mu     sync.Mutex
	open   []*session
	closed bool
}

// session is one call of Subscribe.
type session struct {
	consumer *consumer
	out      chan *message.Message
	stopped  bool          // guarded by consumer.mu: take nothing more
	intake   chan struct{} // closed with stopped
	abandon  chan struct{} // closed: wait for no acknowledgement
	workers  sync.WaitGroup
	stopOnce sync.Once
	endOnce  sync.Once
}

// Subscribe implements message.Subscriber.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if topic != s.subscription.Topic {
		return nil, fmt.Errorf("consumer %s reads topic %s, not %s", s.subscription.Consumer, s.subscription.Topic, topic)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the subscriber is closed")
	}
	x := &session{
		consumer: s.consumer, out: make(chan *message.Message),
		intake: make(chan struct{}), abandon: make(chan struct{}),
	}
	n := s.subscription.Concurrency
	if n < 1 {
		n = concurrency
	}
	ctx, cancel := context.WithCancel(ctx)
	for range n {
		x.workers.Go(func() { x.work(ctx) })
	}
	context.AfterFunc(ctx, x.end)
	go func() { // ends with the session
		<-x.abandon
		x.workers.Wait()
		cancel()
		close(x.out)
	}()
	s.open = append(s.open, x)
	return x.out, nil
}

// Drain implements bus.Subscriber.
func (s *subscriber) Drain(ctx context.Context) error {
	s.mu.Lock()
	open := s.open
	s.mu.Unlock()
	quiet := make(chan struct{})
	go func() { // ends at the latest when Close abandons what is in flight
		for _, x := range open {
			x.stop()
			x.workers.Wait()
		}
		close(quiet)
	}()
	select {
	case <-quiet:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close implements message.Subscriber: messages in flight are abandoned and
// come back to other subscriptions of the consumer.
func (s *subscriber) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, x := range s.open {
		x.end()
		x.workers.Wait()
		for range x.out { // until it is closed; nobody sends any more
		}
	}
	s.open = nil
	return nil
}

func (x *session) stop() {
	x.stopOnce.Do(func() {
		x.consumer.mu.Lock()
		x.stopped = true
		x.consumer.mu.Unlock()
		close(x.intake)
		x.consumer.changed.Broadcast()
	})
}

func (x *session) end() {
	x.stop()
	x.endOnce.Do(func() { close(x.abandon) })
}

// work hands out one message after another, each of whatever key is ready.
func (x *session) work(ctx context.Context) {
	for {
		l, e := x.consumer.take(&x.stopped)
		if l == nil {
			return
		}
		x.consumer.finish(l, x.deliver(ctx, e))
	}
}

func (x *session) deliver(ctx context.Context, e *entry) outcome {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := message.NewMessage(e.id, append([]byte{}, e.payload...))
	m.Metadata = message.Metadata{}
	maps.Copy(m.Metadata, e.headers)
	m.SetContext(ctx)
	select {
	case x.out <- m:
	case <-x.intake:
		return abandoned
	}
	select {
	case <-m.Acked():
		return acknowledged
	case <-m.Nacked():
		return nacked
	case <-x.abandon:
		return abandoned
	}
}
