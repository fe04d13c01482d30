package gateway

import (
	"fmt"
	"hash/fnv"
	"time"
)

// Options of a simulator's faults. The zero value has none. Which keys are hit
// depends on the key alone, so that runs repeat. Fractions are from 0 to 1,
// durations are not negative. A key may be hit by both faults: first it is
// refused, and when its charge gets through the answer is held back.
type Options struct {
	Unavailable      float64       // fraction of keys whose first calls get 503; charges and annulments are hit apart
	UnavailableCalls int           // how many of them, counted since the start; 0 means 1
	Hang             float64       // fraction of keys whose first charge is made but not answered in time
	HangFor          time.Duration // how long such an answer is held back; 0 means a minute
	Latency          time.Duration // of every charge and annulment
	FailFor          time.Duration // Unavailable and Hang end so long after the start; 0 means never
}

func (o Options) check() error {
	for name, share := range map[string]float64{"Unavailable": o.Unavailable, "Hang": o.Hang} {
		if !(share >= 0 && share <= 1) { // NaN too
			return fmt.Errorf("%s %v: want a fraction from 0 to 1", name, share)
		}
	}
	for name, d := range map[string]time.Duration{"HangFor": o.HangFor, "Latency": o.Latency, "FailFor": o.FailFor} {
		if d < 0 {
			return fmt.Errorf("%s %s: want zero or more", name, d)
		}
	}
	if o.UnavailableCalls < 0 {
		return fmt.Errorf("UnavailableCalls %d: want zero or more", o.UnavailableCalls)
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.UnavailableCalls == 0 {
		o.UnavailableCalls = 1
	}
	if o.HangFor == 0 {
		o.HangFor = time.Minute
	}
	return o
}

// refuses decides whether this call gets 503. call tells charges and
// annulments of a key apart.
func (s *Simulator) refuses(call string) bool {
	if s.recovered() || share(call) >= s.opts.Unavailable {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused[call] >= s.opts.UnavailableCalls {
		return false
	}
	s.refused[call]++
	s.injected.Add(1)
	return true
}

// hangs decides whether the answer to this charge is held back: only to the
// first that reached the ledger, so that a restart does not hang it again.
func (s *Simulator) hangs(a Asiento) bool {
	if a.Llamadas != 1 || s.recovered() || share("hang/"+a.Clave) >= s.opts.Hang {
		return false
	}
	s.injected.Add(1)
	return true
}

func (s *Simulator) recovered() bool {
	return s.opts.FailFor > 0 && time.Since(s.started) > s.opts.FailFor
}

// share spreads texts evenly over [0, 1).
func share(text string) float64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return float64(h.Sum64()%10_000) / 10_000
}
