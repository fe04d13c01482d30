package consumer

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/cenkalti/backoff/v5"
	"github.com/sony/gobreaker"
	"golang.org/x/time/rate"

	"km0/platform/envelope"
	"km0/platform/postgres"
)

// drain gives the message the life of the drain instead of the router's.
func (b *builder) drain(next message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) {
		m.SetContext(detach(b.Deps.Drain.waits, m.Context()))
		return next(m)
	}
}

const (
	pauseMin = 100 * time.Millisecond
	pauseMax = 5 * time.Second
)

// errCircuitOpen is what an open circuit breaker makes of a message.
var errCircuitOpen = errors.New("the circuit breaker is open")

// waitable says that err is no fault of the message and passes by itself.
func waitable(err error) bool {
	return postgres.Unavailable(err) || errors.Is(err, errCircuitOpen)
}

// pause keeps the message while what it needs is away: it is not acknowledged,
// nothing is dead-lettered and no attempt is counted.
func (b *builder) pause(next message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) {
		ctx := m.Context()
		for wait := pauseMin; ; wait = min(2*wait, pauseMax) {
			m.SetContext(ctx)
			produced, err := next(m)
			if !waitable(err) {
				if b.paused.leave() {
					b.metrics.paused(false)
					b.Logger.Info("consumption goes on")
				}
				return produced, err
			}
			if b.paused.enter() {
				b.metrics.paused(true)
				b.Logger.Warn("consumption pauses", "error", err)
			}
			select {
			case <-time.After(time.Duration(float64(wait) * (0.5 + rand.Float64()))):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
}

// state is a condition whose changes are logged once.
type state struct{ on atomic.Bool }

func (s *state) enter() bool { return s.on.CompareAndSwap(false, true) }
func (s *state) leave() bool { return s.on.Load() && s.on.CompareAndSwap(true, false) }

// noteFailure keeps the typed error for the dead letter: PoisonQueue passes
// its text only. It keeps the headers, too, which PoisonQueue adds to.
func (b *builder) noteFailure(next message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) {
		d := deliveryOf(m.Context())
		produced, err := next(m)
		if err != nil {
			d.failure = err
			d.headers = make(map[string]string, len(m.Metadata))
			for name, value := range m.Metadata {
				d.headers[name] = value
			}
		}
		return produced, err
	}
}

// retry is Watermill's. ResetContextOnRetry: without it every attempt after
// the first has the dead context of Timeout (watermill#467). Errors that must
// not be retried come wrapped in backoff.Permanent: ShouldRetry would make the
// waits drift.
func (b *builder) retry() message.HandlerMiddleware {
	r := b.Settings.Retry
	return middleware.Retry{
		MaxRetries: r.Attempts - 1, InitialInterval: r.Initial, MaxInterval: r.Max,
		Multiplier: r.Multiplier, RandomizationFactor: r.Jitter,
		ResetContextOnRetry: true, Logger: watermill.NopLogger{},
	}.Middleware
}

// circuitBreaker is Watermill's. Its refusals pause the consumer instead of
// using up attempts; a business rule's no is no failure of a dependency.
func (b *builder) circuitBreaker() message.HandlerMiddleware {
	s := b.Settings.CircuitBreaker
	breaker := middleware.NewCircuitBreaker(gobreaker.Settings{
		Name:        b.Name,
		Timeout:     s.Open,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= s.Failures },
		IsSuccessful: func(err error) bool {
			if err == nil || b.Deps.Drain.stopped(err) {
				return true
			}
			_, permanent := classify(err)
			return permanent
		},
		OnStateChange: func(_ string, from, to gobreaker.State) {
			b.Logger.Warn("circuit breaker", "from", from.String(), "to", to.String())
		},
	})
	return func(next message.HandlerFunc) message.HandlerFunc {
		guarded := breaker.Middleware(next)
		return func(m *message.Message) ([]*message.Message, error) {
			produced, err := guarded(m)
			if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
				return nil, backoff.Permanent(errCircuitOpen)
			}
			return produced, err
		}
	}
}

// throttle is not Watermill's, which waits through a stop.
func (b *builder) throttle() message.HandlerMiddleware {
	t := b.Settings.Throttle
	limiter := rate.NewLimiter(rate.Every(t.Per/time.Duration(t.Count)), 1)
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) {
			if err := limiter.Wait(m.Context()); err != nil {
				return nil, err
			}
			return next(m)
		}
	}
}

// timeout limits one attempt, and moves it under the drain's second life: a
// stop ends waits at once, but lets an attempt finish.
func (b *builder) timeout(next message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) {
		ctx, cancel := context.WithTimeout(detach(b.Deps.Drain.work, m.Context()), b.Settings.Timeout)
		defer cancel()
		m.SetContext(ctx)
		return next(m)
	}
}

// classes reads the envelope and decides what an error means for Retry.
func (b *builder) classes(next message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) {
		d := deliveryOf(m.Context())
		if err := b.read(m, d); err != nil {
			d.attempts++
			return nil, backoff.Permanent(err)
		}
		if _, wanted := b.Handlers[d.event.Tipo]; !wanted {
			d.outcome = Ignorado
			return nil, nil
		}
		m.SetContext(envelope.WithCorrelation(m.Context(), correlation(m, d)))
		produced, err := next(m)
		switch {
		case err == nil:
			d.attempts++
			return produced, nil
		case waitable(err), b.Deps.Drain.stopped(err):
			return nil, backoff.Permanent(err)
		}
		d.attempts++
		class, permanent := classify(err)
		b.metrics.failed(class)
		if permanent {
			return nil, backoff.Permanent(err)
		}
		b.Logger.Warn("attempt failed", "id_evento", d.event.ID, "attempt", d.attempts, "class", class, "error", err)
		return nil, err
	}
}

func (b *builder) read(m *message.Message, d *delivery) error {
	if d.fingerprint != nil { // an earlier attempt did
		return nil
	}
	e, err := envelope.Decode(m.Payload)
	if err != nil {
		return err
	}
	d.event, d.fingerprint = e, e.Fingerprint()
	return nil
}

// correlation is what the handler's own events will carry.
func correlation(m *message.Message, d *delivery) string {
	if id := m.Metadata.Get(envelope.HeaderCorrelation); id != "" {
		return id
	}
	return d.event.ID
}
