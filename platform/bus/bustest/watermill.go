package bustest

import (
	"context"
	"errors"
	"io"
	"log"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"km0/platform/bus"
	"km0/platform/envelope"
)

// runWatermill runs Watermill's suite for transports. Its messages have no
// key, and km0 promises no order between keys: what it asks about order is
// asked of messages whose payload is the key.
func runWatermill(t *testing.T, harness func(t *testing.T) Harness) {
	log.SetOutput(io.Discard) // the suite logs each read
	features := tests.Features{ConsumerGroups: true, Persistent: true, ForceShort: true}
	inOrder := features
	inOrder.GuaranteedOrder = true

	t.Run("Watermill", func(t *testing.T) {
		t.Parallel()
		bus := pubSubs{h: harness(t)}
		tests.TestPubSub(t, features, bus.one, bus.group)
	})
	for name, test := range map[string]func(*testing.T, tests.TestContext, tests.PubSubConstructor){
		"WatermillPublishSubscribeInOrder": tests.TestPublishSubscribeInOrder,
		"WatermillNoAck":                   tests.TestNoAck,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bus := pubSubs{h: harness(t), keyIsPayload: true}
			test(t, tests.TestContext{TestID: tests.NewTestID(), Features: inOrder}, bus.one)
		})
	}
	t.Run("WatermillNewSubscriberReceivesOldMessages", func(t *testing.T) {
		t.Parallel()
		bus := pubSubs{h: harness(t)}
		old := features
		old.NewSubscriberReceivesOldMessages = true
		test := tests.TestContext{TestID: tests.NewTestID(), Features: old}
		tests.TestNewSubscriberReceivesOldMessages(t, test, func(t *testing.T) (message.Publisher, message.Subscriber) {
			return bus.group(t, watermill.NewShortUUID())
		})
	})
}

// pubSubs makes what Watermill's suite wants: pairs of a publisher and a
// subscriber to any topic, each in a process of its own.
type pubSubs struct {
	h            Harness
	keyIsPayload bool
}

func (b pubSubs) one(t *testing.T) (message.Publisher, message.Subscriber) {
	return b.group(t, "prueba")
}

func (b pubSubs) group(t *testing.T, consumer string) (message.Publisher, message.Subscriber) {
	d := b.h.Open()
	pub := d.Publisher()
	if b.keyIsPayload {
		pub = keying{pub}
	}
	sub := &anyTopic{driver: d, consumer: consumer}
	t.Cleanup(func() { _ = sub.Close() }) // the suite does not close all of them
	return pub, sub
}

type keying struct{ message.Publisher }

func (k keying) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		m.Metadata.Set(envelope.HeaderClave, string(m.Payload))
	}
	return k.Publisher.Publish(topic, messages...)
}

// anyTopic reads any topic, each as a consumer of its own.
type anyTopic struct {
	driver   bus.Driver
	consumer string

	mu   sync.Mutex
	open []message.Subscriber
}

func (a *anyTopic) subscription(topic string) bus.Subscription {
	return bus.Subscription{Consumer: a.consumer + " of " + topic, Topic: topic, Concurrency: 16}
}

// SubscribeInitialize implements message.SubscribeInitializer.
func (a *anyTopic) SubscribeInitialize(topic string) error {
	return a.driver.Declare(context.Background(), bus.Topology{
		Topics: []bus.Topic{{Name: topic}}, Subscriptions: []bus.Subscription{a.subscription(topic)},
	})
}

// Subscribe implements message.Subscriber.
func (a *anyTopic) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	sub, err := a.driver.Subscriber(a.subscription(topic))
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	a.open = append(a.open, sub)
	a.mu.Unlock()
	return sub.Subscribe(ctx, topic)
}

// Close implements message.Subscriber.
func (a *anyTopic) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var err error
	for _, sub := range a.open {
		err = errors.Join(err, sub.Close())
	}
	return err
}
