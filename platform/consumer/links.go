package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/cenkalti/backoff/v5"
	"github.com/sony/gobreaker"
	"golang.org/x/time/rate"

	"km0/platform/deadletter"
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
	pauseMax = 3 * time.Second // with its jitter below five
)

// errCircuitOpen is what an open circuit breaker makes of a message.
var errCircuitOpen = errors.New("the circuit breaker is open")

// away is an error that says nothing of the message, whatever its cause: no
// transaction could be begun, or COMMIT was not answered. In the second case
// the effect may be there: only the inbox can tell, when the message runs again.
type away struct{ err error }

func (a *away) Error() string { return a.err.Error() }
func (a *away) Unwrap() error { return a.err }

// waitable says that err is no fault of the message and passes by itself.
func waitable(err error) bool {
	var (
		a *away
		f *failure
	)
	switch {
	case errors.As(err, &a), errors.Is(err, errCircuitOpen):
		return true
	case errors.As(err, &f): // the handler knows better whose network it is
		return false
	}
	return postgres.Unavailable(err)
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
				// An ignored message needs nothing, so it proves nothing.
				if err == nil && deliveryOf(ctx).outcome != Ignorado && b.paused.leave() {
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
			case <-time.After(wait/2 + rand.N(wait/2)):
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

// retry is Watermill's. ResetContextOnRetry: without it every attempt after
// the first has the dead context of Timeout (watermill#467). Errors that must
// not be retried come wrapped in backoff.Permanent: ShouldRetry would make the
// waits drift.
func (b *builder) retry() message.HandlerMiddleware {
	r := b.Settings.Retry
	retry := middleware.Retry{
		MaxRetries: r.Attempts - 1, InitialInterval: r.Initial, MaxInterval: r.Max,
		Multiplier: r.Multiplier, RandomizationFactor: r.Jitter,
		ResetContextOnRetry: true, Logger: watermill.NopLogger{},
	}
	return func(next message.HandlerFunc) message.HandlerFunc { return retry.Middleware(b.attempt(next)) }
}

// attempt counts: here and not further in, because here panics are errors.
func (b *builder) attempt(next message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) {
		d := deliveryOf(m.Context())
		produced, err := next(m)
		if waitable(err) || b.Deps.Drain.stopped(err) {
			return produced, err
		}
		d.attempts++
		if err == nil {
			return produced, nil
		}
		class, permanent := classify(err)
		b.metrics.failed(class)
		if !permanent {
			b.Logger.Warn("attempt failed", "id_evento", d.event.ID, "correlation_id", correlation(m, d),
				"attempt", d.attempts, "class", class, "error", deadletter.Reason(err.Error()))
		}
		return produced, err
	}
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
		ctx, cancel := b.limited(m.Context())
		defer cancel()
		m.SetContext(ctx)
		return next(m)
	}
}

func (b *builder) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(detach(b.Deps.Drain.work, ctx), b.Settings.Timeout)
}

// classes reads the envelope and decides what an error means for Retry.
func (b *builder) classes(next message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) {
		d := deliveryOf(m.Context())
		if err := b.read(m, d); err != nil {
			return nil, backoff.Permanent(err)
		}
		if _, wanted := b.Handlers[d.event.Tipo]; !wanted {
			d.outcome = Ignorado
			return nil, nil
		}
		m.SetContext(envelope.WithCorrelation(m.Context(), correlation(m, d)))
		produced, err := next(m)
		if err == nil {
			return produced, nil
		}
		if _, permanent := classify(err); permanent || waitable(err) || b.Deps.Drain.stopped(err) {
			return nil, backoff.Permanent(err)
		}
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
	if strings.ContainsRune(e.ID+e.Tipo, 0) {
		return fmt.Errorf("%w: the database takes no NUL in id_evento and tipo", envelope.ErrMalformed)
	}
	d.event, d.fingerprint = e, e.Fingerprint()
	return nil
}

const correlationMost = 200 // bytes

// correlation is what the handler's own events will carry, and logs. A foreign
// value that could not be stored or printed is as good as none.
func correlation(m *message.Message, d *delivery) string {
	id := m.Metadata.Get(envelope.HeaderCorrelation)
	if id == "" || len(id) > correlationMost || id != deadletter.Printable(id) {
		return d.event.ID
	}
	return id
}
