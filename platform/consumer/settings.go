package consumer

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Over is s with what it leaves at zero taken from base: configuration over a
// module's defaults.
func (s Settings) Over(base Settings) Settings {
	s.Concurrency = cmp.Or(s.Concurrency, base.Concurrency)
	s.Retry = Retry{
		Attempts:   cmp.Or(s.Retry.Attempts, base.Retry.Attempts),
		Initial:    cmp.Or(s.Retry.Initial, base.Retry.Initial),
		Max:        cmp.Or(s.Retry.Max, base.Retry.Max),
		Multiplier: cmp.Or(s.Retry.Multiplier, base.Retry.Multiplier),
		Jitter:     cmp.Or(s.Retry.Jitter, base.Retry.Jitter),
	}
	s.Timeout = cmp.Or(s.Timeout, base.Timeout)
	s.Batch = Batch{
		Size: cmp.Or(s.Batch.Size, base.Batch.Size),
		Wait: cmp.Or(s.Batch.Wait, base.Batch.Wait),
	}
	s.Throttle = Throttle{
		Count: cmp.Or(s.Throttle.Count, base.Throttle.Count),
		Per:   cmp.Or(s.Throttle.Per, base.Throttle.Per),
	}
	s.CircuitBreaker = CircuitBreaker{
		Failures: cmp.Or(s.CircuitBreaker.Failures, base.CircuitBreaker.Failures),
		Open:     cmp.Or(s.CircuitBreaker.Open, base.CircuitBreaker.Open),
	}
	return s
}

// Validate says all that is wrong with s, as it will be used: over Defaults.
func (s Settings) Validate() error { return errors.Join(s.Over(Defaults()).wrong()...) }

// wrong expects settings without zero values where zero means a default.
func (s Settings) wrong() (wrong []error) {
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if s.Concurrency < 1 || s.Concurrency > 1000 {
		bad("concurrency must be from 1 to 1000, not %d", s.Concurrency)
	}
	r := s.Retry
	switch {
	case r.Attempts < 1 || r.Attempts > 100:
		bad("retry.attempts must be from 1 to 100, not %d", r.Attempts)
	case r.Initial < 10*time.Millisecond:
		bad("retry.initial must be at least 10ms, not %s", r.Initial)
	case r.Max < r.Initial:
		bad("retry.max (%s) must not be below retry.initial (%s)", r.Max, r.Initial)
	case r.Multiplier < 1 || r.Multiplier > 10:
		bad("retry.multiplier must be from 1 to 10, not %g", r.Multiplier)
	case r.Jitter < 0 || r.Jitter > 1:
		bad("retry.jitter must be from 0 to 1, not %g", r.Jitter)
	}
	if s.Timeout < 10*time.Millisecond {
		bad("timeout must be at least 10ms, not %s", s.Timeout)
	}
	if b := s.Batch; b.Size < 0 || b.Size > 1 && (b.Size > 1000 || b.Wait <= 0 || b.Wait > time.Second) {
		bad("batch needs a size up to 1000 and a wait up to 1s, not %d and %s", b.Size, b.Wait)
	}
	if t := s.Throttle; t.Count < 0 || t.Count > 0 && t.Per <= 0 {
		bad("throttle needs a count and the time it is per, not %d and %s", t.Count, t.Per)
	}
	if c := s.CircuitBreaker; c.Failures > 0 && c.Open <= 0 {
		bad("circuit_breaker needs how long it stays open, not %s", c.Open)
	}
	return wrong
}
