// Package bus is what carries events between modules: one Driver over
// PostgreSQL, Kafka, RabbitMQ or memory, opened from configuration.
//
// The promise, the same on every driver: what Publish confirmed is delivered
// at least once to every consumer of the topic, events of one key are
// delivered in the order of their publication and one at a time, and an event
// that was not acknowledged comes back, whoever was killed.
package bus

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrRefused is wrapped by errors of Publish that no repetition will cure: the
// message is too large, or something in it the broker does not take.
// Every other error means "try again".
var ErrRefused = errors.New("the bus refuses the message for good")

// Refused wraps err as a refusal for good.
func Refused(err error) error { return fmt.Errorf("%w: %w", ErrRefused, err) }

// Topic names a stream of events.
type Topic struct{ Name string }

// Subscription is what one consumer reads.
type Subscription struct {
	Consumer    string // the consumer's name; processes with the same name compete
	Topic       string
	Concurrency int // most messages in flight in this process, each of another key
	// Types are the values of the header "tipo" the consumer handles; nil means
	// all. A driver may leave out messages of other types, never those without
	// the header; a type that is added later is delivered from then on.
	Types []string
}

// Topology is everything that must exist before the first message flows: a
// topic without its subscriptions would lose what is published meanwhile.
type Topology struct {
	Topics        []Topic
	Subscriptions []Subscription
}

// Subscriber is a message.Subscriber that can stop without breaking off work.
type Subscriber interface {
	message.Subscriber
	// Drain hands out nothing more and returns when every message in flight
	// was acknowledged or nacked and the bus knows it, or with ctx's error. The
	// messages' contexts stay alive meanwhile. Close abandons instead.
	Drain(ctx context.Context) error
}

// Driver is one kind of bus. It is safe for concurrent use.
type Driver interface {
	// Declare makes the topology exist; idempotent, safe in several processes.
	// A subscription that is new starts at the oldest message that is kept.
	Declare(ctx context.Context, t Topology) error
	// Publisher gives a publisher whose Publish returns after the bus has made
	// the messages durable. Concurrent calls share round trips. The header
	// "clave" is the key. Its Close does nothing: the driver owns it.
	Publisher() message.Publisher
	// Subscriber gives the subscriber of one consumer. The Watermill topic
	// passed to Subscribe must be the subscription's.
	Subscriber(s Subscription) (Subscriber, error)
	// Lag counts, per consumer, messages waiting, and the age of the oldest in
	// seconds. Drivers that cannot tell return an empty map.
	Lag(ctx context.Context) (map[string]Lag, error)
	// Close ends connections and goroutines. Subscribers must be closed before.
	Close() error
}

// Lag is how far one consumer is behind.
type Lag struct {
	Messages      int64
	OldestSeconds float64
}
