// Package memory is the bus inside one process, for unit tests: what it
// promises within a process is what the other drivers promise between them.
//
// Events of one key are delivered in the order of their publication and one at
// a time, events of many keys side by side; subscriptions of one consumer
// compete, in one process. A nacked message comes back after a small growing
// pause and before the later ones of its key. Nothing is ever delivered inside
// the publisher's call, so a handler may publish to the topic it reads. A new
// consumer starts at the oldest message; the log is never purged.
//
// It survives nothing: when the process ends, everything is gone.
package memory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"km0/platform/bus"
	"km0/platform/envelope"
)

// MaxBytes is the default of Config.MaxBytes.
const MaxBytes = 1 << 20

// Config of the driver. Zero values mean the defaults named here.
type Config struct {
	MaxBytes int // largest payload; 1 MiB
}

// Driver implements bus.Driver.
type Driver struct {
	cfg Config

	mu        sync.Mutex
	log       map[string][]*entry  // by topic
	consumers map[string]*consumer // by name
	closed    bool
}

var _ bus.Driver = (*Driver)(nil)

var errClosed = errors.New("the bus is closed")

// entry is a published message; it never changes.
type entry struct {
	id, key string
	headers message.Metadata
	payload []byte
	at      time.Time // of its publication
	due     time.Time // not before
}

// Open never fails.
func Open(cfg Config) *Driver {
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = MaxBytes
	}
	return &Driver{cfg: cfg, log: map[string][]*entry{}, consumers: map[string]*consumer{}}
}

// Declare implements bus.Driver. A subscription that exists with another topic
// is an error.
func (d *Driver) Declare(_ context.Context, t bus.Topology) error {
	for _, s := range t.Subscriptions {
		if _, err := d.declare(s); err != nil {
			return fmt.Errorf("declare the subscription of %s to %s: %w", s.Consumer, s.Topic, err)
		}
	}
	return nil
}

func (d *Driver) declare(s bus.Subscription) (*consumer, error) {
	if s.Consumer == "" || s.Topic == "" {
		return nil, errors.New("a subscription needs a consumer and a topic")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed
	}
	c := d.consumers[s.Consumer]
	switch {
	case c == nil:
		c = newConsumer(s.Topic)
		c.add(d.log[s.Topic]...)
		d.consumers[s.Consumer] = c
	case c.topic != s.Topic:
		return nil, fmt.Errorf("it reads %s already: give the consumer another name", c.topic)
	}
	return c, nil
}

// Publisher implements bus.Driver.
func (d *Driver) Publisher() message.Publisher { return publisher{d} }

type publisher struct{ driver *Driver }

// Publish keeps copies of the messages and returns; a payload above the limit
// is bus.ErrRefused, and then none of the call is published.
func (p publisher) Publish(topic string, messages ...*message.Message) error {
	d := p.driver
	now := time.Now()
	entries := make([]*entry, len(messages))
	for i, m := range messages {
		if len(m.Payload) > d.cfg.MaxBytes {
			return bus.Refused(fmt.Errorf("message %s has %d bytes, at most %d are allowed", m.UUID, len(m.Payload), d.cfg.MaxBytes))
		}
		e := &entry{
			id: m.UUID, key: m.Metadata.Get(envelope.HeaderClave), at: now,
			headers: maps.Clone(m.Metadata), payload: append([]byte{}, m.Payload...),
		}
		if e.key == "" {
			e.key = e.id // no key, no order: each message is a key of its own
		}
		if due := m.Metadata.Get(envelope.HeaderNoAntes); due != "" {
			var err error
			if e.due, err = time.Parse(time.RFC3339, due); err != nil {
				return bus.Refused(fmt.Errorf("header %s of message %s: %w", envelope.HeaderNoAntes, m.UUID, err))
			}
		}
		entries[i] = e
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed
	}
	d.log[topic] = append(d.log[topic], entries...)
	for _, c := range d.consumers {
		if c.topic == topic {
			c.add(entries...)
		}
	}
	return nil
}

// Close does nothing: publishers are shared, the driver ends them.
func (publisher) Close() error { return nil }

// Subscriber implements bus.Driver. Its Subscribe declares the subscription if
// Declare did not.
func (d *Driver) Subscriber(s bus.Subscription) (bus.Subscriber, error) {
	c, err := d.declare(s)
	if err != nil {
		return nil, err
	}
	return &subscriber{consumer: c, subscription: s}, nil
}

// Lag implements bus.Driver.
func (d *Driver) Lag(context.Context) (map[string]bus.Lag, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	lags := map[string]bus.Lag{}
	for name, c := range d.consumers {
		lags[name] = c.lag()
	}
	return lags, nil
}

// Close forgets everything; Publish and Subscribe fail afterwards.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, c := range d.consumers {
		c.close()
	}
	return nil
}
