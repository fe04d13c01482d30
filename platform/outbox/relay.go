package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"

	"km0/platform/bus"
	"km0/platform/envelope"
	"km0/platform/faults"
	"km0/platform/keyed"
)

// RelayConfig of a Relay. Zero values mean the defaults named here.
type RelayConfig struct {
	Outbox      *Outbox
	Publisher   message.Publisher // the bus
	Claims      *keyed.Claims     // of the outbox's database
	Group       string            // relays of one group share the work; "relay.<origen>"
	Concurrency int               // most events in flight, each of another key; 512
	Poll        time.Duration     // how often to look without being woken; 250 ms
	Logger      *slog.Logger      // nil discards
}

// Relay brings the events of one outbox to the bus. Any number of relays of
// one outbox may run, in one process or many.
type Relay struct {
	cfg       RelayConfig
	sub       *keyed.Subscriber
	forwarder *forwarder.Forwarder
	cancel    context.CancelFunc // nil before Start
	ended     chan struct{}      // closed: the forwarder has ended, with err
	err       error
	down      atomic.Bool // the bus did not take the last event
}

// NewRelay prepares a relay; Start runs it.
func NewRelay(cfg RelayConfig) (*Relay, error) {
	if cfg.Group == "" {
		cfg.Group = "relay." + cfg.Outbox.cfg.Origen
	}
	if cfg.Concurrency < 1 {
		cfg.Concurrency = 512
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Logger = cfg.Logger.With("relay", cfg.Group)
	r := &Relay{cfg: cfg, ended: make(chan struct{})}
	r.sub = keyed.NewSubscriber(keyed.Config{
		Group: cfg.Group, Table: table{cfg.Outbox.cfg.Pool, cfg.Outbox.cfg.Origen}, Claims: cfg.Claims,
		Concurrency: cfg.Concurrency, Poll: cfg.Poll, Logger: cfg.Logger,
	})
	var err error
	// Watermill logs each failed message with its payload: the relay logs
	// changes of state instead, and never a payload.
	r.forwarder, err = forwarder.NewForwarder(r.sub, cfg.Publisher, watermill.NopLogger{}, forwarder.Config{
		ForwarderTopic: "outbox",
		Middlewares:    []message.HandlerMiddleware{r.watch},
	})
	if err != nil {
		return nil, fmt.Errorf("relay %s: %w", cfg.Group, err)
	}
	return r, nil
}

// watch marks what the bus refuses for good and tells when the bus goes away
// and comes back.
func (r *Relay) watch(publish message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) {
		if reason := m.Metadata.Get(envelope.HeaderMotivo); reason != "" {
			err := fmt.Errorf("the row cannot be sent: %s", reason)
			keyed.Refuse(m.Context(), err)
			return nil, err
		}
		produced, err := publish(m)
		switch {
		case err == nil:
			faults.Point(faults.RelayConfirmed)
			if r.down.CompareAndSwap(true, false) {
				r.cfg.Logger.Info("the bus takes events again")
			}
		case errors.Is(err, bus.ErrRefused):
			keyed.Refuse(m.Context(), err)
		case r.down.CompareAndSwap(false, true):
			r.cfg.Logger.Error("the bus does not take events, trying again", "error", err)
		}
		return produced, err
	}
}

// Start returns when the relay runs. It runs until Stop, whatever becomes of
// ctx. After an error, and after Stop, make another relay.
func (r *Relay) Start(ctx context.Context) error {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.cancel = cancel
	go func() {
		defer close(r.ended)
		r.err = r.forwarder.Run(running)
	}()
	select {
	case <-r.forwarder.Running():
	case <-r.ended:
		cancel()
		return fmt.Errorf("start %s: %w", r.cfg.Group, errors.Join(errors.New("the forwarder ended"), r.err))
	case <-ctx.Done():
		cancel()
		_ = r.forwarder.Close()
		<-r.ended
		return fmt.Errorf("start %s: %w", r.cfg.Group, ctx.Err())
	}
	wake := r.sub.Wake
	r.cfg.Outbox.wake.Store(&wake)
	return nil
}

// Stop takes no more rows, waits until the bus has confirmed those in flight
// and they are marked, and ends. After ctx it abandons them: they go out again
// later. Without a Start that succeeded, and a second time, it does nothing.
func (r *Relay) Stop(ctx context.Context) error {
	if r.cancel == nil {
		return nil
	}
	r.cfg.Outbox.wake.Store(nil)
	drained := r.sub.Drain(ctx)
	closed := r.forwarder.Close()
	r.cancel()
	<-r.ended
	if err := errors.Join(drained, closed, r.err); err != nil {
		return fmt.Errorf("stop %s: %w", r.cfg.Group, err)
	}
	return nil
}
