package memory

import (
	"sync"
	"time"

	"km0/platform/bus"
)

const (
	pauseMin = 5 * time.Millisecond // of a key after its first nack
	pauseMax = 500 * time.Millisecond
)

// consumer is what one consumer has to acknowledge, as one line per key. A
// line is in one of three places: in ready, in the hands of a worker, or
// waiting for its timer.
type consumer struct {
	topic string

	mu      sync.Mutex
	changed *sync.Cond // ready has grown, or a subscription ends
	lines   map[string]*line
	ready   []*line
	closed  bool
}

// line is the messages of one key, oldest first; it is never empty.
type line struct {
	key      string
	waiting  []*entry
	failures int // of the first message
	timer    *time.Timer
}

func newConsumer(topic string) *consumer {
	c := &consumer{topic: topic, lines: map[string]*line{}}
	c.changed = sync.NewCond(&c.mu)
	return c
}

// add puts messages behind those of their keys.
func (c *consumer) add(entries ...*entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		if l := c.lines[e.key]; l != nil {
			l.waiting = append(l.waiting, e)
			continue
		}
		l := &line{key: e.key, waiting: []*entry{e}}
		c.lines[e.key] = l
		c.schedule(l, 0)
	}
}

// schedule makes l ready when its pause is over and its first message is due.
// The caller holds mu.
func (c *consumer) schedule(l *line, pause time.Duration) {
	if wait := max(pause, time.Until(l.waiting[0].due)); wait > 0 && !c.closed {
		l.timer = time.AfterFunc(wait, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.schedule(l, 0)
		})
		return
	}
	c.ready = append(c.ready, l)
	c.changed.Signal()
}

// take waits for a line and returns its first message, or nil once stopped is
// true.
func (c *consumer) take(stopped *bool) (*line, *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.ready) == 0 && !*stopped {
		c.changed.Wait()
	}
	if *stopped {
		c.changed.Signal() // the signal may have been meant for a line
		return nil, nil
	}
	l := c.ready[0]
	c.ready = c.ready[1:]
	return l, l.waiting[0]
}

type outcome int

const (
	acknowledged outcome = iota
	nacked
	abandoned
)

// finish takes a line back.
func (c *consumer) finish(l *line, o outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch o {
	case acknowledged:
		l.failures = 0
		l.waiting = l.waiting[1:]
		if len(l.waiting) == 0 {
			delete(c.lines, l.key)
			return
		}
		c.schedule(l, 0)
	case nacked:
		pause := min(pauseMin<<min(l.failures, 10), pauseMax)
		l.failures++
		c.schedule(l, pause)
	case abandoned:
		c.schedule(l, 0)
	}
}

func (c *consumer) lag() (lag bus.Lag) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lines {
		lag.Messages += int64(len(l.waiting))
		lag.OldestSeconds = max(lag.OldestSeconds, time.Since(l.waiting[0].at).Seconds())
	}
	return lag
}

// close stops the timers.
func (c *consumer) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, l := range c.lines {
		if l.timer != nil {
			l.timer.Stop()
		}
	}
}
