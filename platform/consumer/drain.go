package consumer

import (
	"context"
	"errors"
	"sync"

	"km0/platform/bus"
)

// Drain ends the consumers of a process without breaking off their work.
// Watermill's router cancels the context of messages in flight before it waits
// for them (watermill#568), and a message that fails for that would look like
// any failure: call Stop before the router's Close.
type Drain struct {
	waits     context.Context // ends with Stop: retries and pauses wait under it
	stopWaits context.CancelFunc
	work      context.Context // ends when Stop has run out of time: handlers run under it
	stopWork  context.CancelFunc

	mu   sync.Mutex
	subs []bus.Subscriber
}

// NewDrain returns the drain of one process.
func NewDrain() *Drain {
	d := &Drain{}
	d.waits, d.stopWaits = context.WithCancel(context.Background())
	d.work, d.stopWork = context.WithCancel(context.Background())
	return d
}

func (d *Drain) add(sub bus.Subscriber) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.subs = append(d.subs, sub)
}

// Stop takes no more messages and returns when those in flight are
// acknowledged or given back. Messages that wait for another attempt are given
// back at once; it is neither an attempt nor a dead letter. Handlers go on
// until ctx ends; then they are cancelled and their messages are left to be
// delivered again.
func (d *Drain) Stop(ctx context.Context) error {
	d.stopWaits()
	d.mu.Lock()
	subs := d.subs
	d.mu.Unlock()
	results := make(chan error, len(subs))
	for _, sub := range subs {
		go func() { results <- sub.Drain(ctx) }()
	}
	var failed []error
	for range subs {
		failed = append(failed, <-results)
	}
	d.stopWork()
	return errors.Join(failed...)
}

// stopped says whether err comes from the stop and says nothing of the
// message. Once handlers are cancelled, too, no error does: what they make of
// the cancellation need not wrap it.
func (d *Drain) stopped(err error) bool {
	return err != nil && (d.work.Err() != nil || d.waits.Err() != nil && errors.Is(err, context.Canceled))
}

// detached has the values of one context and the life of another.
type detached struct {
	context.Context // the life
	values          context.Context
}

// Value asks the life first: only so does package context find its own parts.
func (d detached) Value(key any) any {
	if v := d.Context.Value(key); v != nil {
		return v
	}
	return d.values.Value(key)
}

func detach(life, values context.Context) context.Context {
	return detached{life, context.WithoutCancel(values)}
}
