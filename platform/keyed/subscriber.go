package keyed

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Config of a Subscriber. Zero values mean the defaults named here.
type Config struct {
	Group       string        // readers with the same group share the lanes
	WakeOn      string        // the name Claims.Notify uses to wake it; Group
	Table       Table         // what is read
	Claims      *Claims       // who owns which lanes; one per process and database
	Concurrency int           // most messages in flight; 64
	Poll        time.Duration // how often to look without being woken; 250 ms
	Logger      *slog.Logger  // nil discards
}

// Subscriber is a message.Subscriber over a Table.
type Subscriber struct {
	cfg Config

	mu     sync.Mutex
	reader *reader
	closed bool
}

var errClosed = errors.New("the subscriber is closed")

// NewSubscriber does nothing until Subscribe.
func NewSubscriber(cfg Config) *Subscriber {
	if cfg.WakeOn == "" {
		cfg.WakeOn = cfg.Group
	}
	if cfg.Concurrency < 1 {
		cfg.Concurrency = 64
	}
	if cfg.Poll <= 0 {
		cfg.Poll = 250 * time.Millisecond
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Logger = cfg.Logger.With("group", cfg.Group)
	return &Subscriber{cfg: cfg}
}

// Subscribe starts reading; it may be called once, and the topic is not looked
// at. The channel is closed after ctx ends or Close; messages that were not
// acknowledged by then are handed out again later.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if s.reader != nil {
		return nil, errors.New("the subscriber is in use already")
	}
	r := newReader(ctx, s.cfg)
	if err := s.cfg.Claims.join(s.cfg.Group, s.cfg.WakeOn, r); err != nil {
		return nil, err
	}
	s.reader = r
	r.start()
	return r.out, nil
}

// Wake makes the reader look now; cheap, never blocks, any goroutine.
func (s *Subscriber) Wake() {
	s.mu.Lock()
	r := s.reader
	s.mu.Unlock()
	if r != nil {
		r.wake()
	}
}

// Drain stops handing out and returns when every message in flight was
// acknowledged or nacked and every acknowledged row is settled, or with ctx's
// error. The messages' contexts stay alive meanwhile.
func (s *Subscriber) Drain(ctx context.Context) error {
	s.mu.Lock()
	r := s.reader
	s.mu.Unlock()
	if r == nil {
		return nil
	}
	return r.drain(ctx)
}

// Close stops at once: messages in flight are abandoned (their rows stay
// pending), what was acknowledged is settled, the lanes are given back. Call
// Drain before, to abandon nothing.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	r := s.reader
	s.mu.Unlock()
	if r != nil {
		r.close()
	}
	return nil
}
