// Package lifecycle starts the parts of a process in order and stops them in
// reverse, so that nobody works on what is gone already: what accepts work
// stops first, what the work needs stops last.
//
// Failure model. A part that cannot start: those before it are stopped again,
// and the process has not begun. A part that dies by itself: Wait returns, and
// the process stops in order. A part that does not stop: it is given up at the
// deadline, named in the error, and the others are stopped all the same. A
// second signal ends the process at once; what the parts promise must hold for
// kill -9 anyway.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"
)

const (
	// rollback is how long the parts before one that failed to start have to stop.
	rollback = 15 * time.Second
	// grace is for a part that saw the end of its context to come back and say
	// what it left undone.
	grace = 500 * time.Millisecond
)

// Component is one part of the process.
type Component struct {
	// Name is what logs and errors call it.
	Name string
	// Start returns nil when the component serves; its context is for the start
	// only. When it fails, nothing of the component runs. Nil: nothing to start.
	Start func(ctx context.Context) error
	// Stop returns when nothing of the component runs any more. At the end of
	// its context it gives up what is left and says so. It is called at most
	// once, and only after Start succeeded. Nil: nothing to stop.
	Stop func(ctx context.Context) error
	// Failed receives an error, or is closed, when a started component ended by
	// itself. Nil: it never does.
	Failed <-chan error
}

// Group is a process made of components. Its methods may be called from several
// goroutines; Stop waits for a Start that is under way.
type Group struct {
	logger     *slog.Logger
	components []Component

	turn    chan struct{} // holds one: Start and Stop take turns on what follows
	begun   bool
	started []Component
	stopped bool
	result  error
}

// New makes a group of components in the order of their start. Nil is no logger.
func New(logger *slog.Logger, components ...Component) *Group {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Group{logger: logger, components: components, turn: make(chan struct{}, 1)}
}

// Start starts the components one after the other and returns when all serve.
// When one fails, or ctx ends, it stops those before it in reverse (for at most
// 15 s, also when ctx has ended) and returns the first error with the name of
// its component. A group starts once.
func (g *Group) Start(ctx context.Context) error {
	g.turn <- struct{}{}
	defer func() { <-g.turn }()
	if g.begun || g.stopped {
		return errors.New("start: this group was started or stopped before")
	}
	g.begun = true
	for _, c := range g.components {
		if err := g.startOne(ctx, c); err != nil {
			back, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollback)
			defer cancel()
			g.stopped = true
			g.result = g.stopStarted(back)
			return fmt.Errorf("start %s: %w", c.Name, err)
		}
		g.started = append(g.started, c)
	}
	return nil
}

func (g *Group) startOne(ctx context.Context, c Component) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.Start == nil {
		return nil
	}
	begin := time.Now()
	if err := c.Start(ctx); err != nil {
		return err
	}
	g.logger.Debug("component started", "component", c.Name, "took", time.Since(begin))
	return nil
}

// Wait blocks until ctx ends, and returns nil, or until a component ends by
// itself, and returns its error with its name. It stops nothing.
func (g *Group) Wait(ctx context.Context) error {
	cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())}}
	var watched []Component
	for _, c := range g.components {
		if c.Failed != nil {
			watched = append(watched, c)
			cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c.Failed)})
		}
	}
	chosen, received, _ := reflect.Select(cases)
	if chosen == 0 {
		return nil
	}
	name := watched[chosen-1].Name
	if err, _ := received.Interface().(error); err != nil {
		return fmt.Errorf("%s failed: %w", name, err)
	}
	return fmt.Errorf("%s ended by itself", name)
}

// Stop stops the started components in reverse order and returns the joined
// errors, each with the name of its component. The deadline of ctx is for all
// of them; one that does not come back within half a second after it is left
// behind. Further calls wait for the first and return what it returned.
func (g *Group) Stop(ctx context.Context) error {
	g.turn <- struct{}{}
	defer func() { <-g.turn }()
	if !g.stopped {
		g.stopped = true
		g.result = g.stopStarted(ctx)
	}
	return g.result
}

func (g *Group) stopStarted(ctx context.Context) error {
	var errs []error
	for len(g.started) > 0 {
		last := len(g.started) - 1
		c := g.started[last]
		g.started = g.started[:last]
		begin := time.Now()
		if err := stopOne(ctx, c); err != nil {
			g.logger.Error("component did not stop cleanly", "component", c.Name, "took", time.Since(begin), "error", err)
			errs = append(errs, fmt.Errorf("stop %s: %w", c.Name, err))
			continue
		}
		g.logger.Debug("component stopped", "component", c.Name, "took", time.Since(begin))
	}
	return errors.Join(errs...)
}

func stopOne(ctx context.Context, c Component) error {
	if c.Stop == nil {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- c.Stop(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	last := time.NewTimer(grace)
	defer last.Stop()
	select {
	case err := <-done:
		return err
	case <-last.C:
		return fmt.Errorf("left behind, it does not come back: %w", context.Cause(ctx))
	}
}
