package lifecycle_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"km0/platform/lifecycle"
)

// recorder notes what happens to its components, in order.
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) note(event string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event)
}

func (r *recorder) component(name string, start, stop error) lifecycle.Component {
	return lifecycle.Component{
		Name:  name,
		Start: func(context.Context) error { r.note("start " + name); return start },
		Stop:  func(context.Context) error { r.note("stop " + name); return stop },
	}
}

var errRoto = errors.New("roto")

func TestComponentsStopInTheReverseOrderOfTheirStart(t *testing.T) {
	var r recorder
	g := lifecycle.New(nil, r.component("base", nil, nil), lifecycle.Component{Name: "nada"}, r.component("relay", nil, nil), r.component("http", nil, nil))
	require.NoError(t, g.Start(context.Background()))
	require.NoError(t, g.Stop(context.Background()))
	require.Equal(t, []string{"start base", "start relay", "start http", "stop http", "stop relay", "stop base"}, r.events)
}

func TestAFailedStartStopsThoseBeforeItAndNothingElse(t *testing.T) {
	var r recorder
	g := lifecycle.New(nil, r.component("base", nil, nil), r.component("relay", nil, nil), r.component("http", errRoto, nil), r.component("listo", nil, nil))
	err := g.Start(context.Background())
	require.ErrorIs(t, err, errRoto)
	require.EqualError(t, err, "start http: roto")
	want := []string{"start base", "start relay", "start http", "stop relay", "stop base"}
	require.Equal(t, want, r.events)

	require.NoError(t, g.Stop(context.Background()))
	require.Equal(t, want, r.events)
}

func TestAStartThatIsInterruptedStopsWithAContextThatLives(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	var inStop error
	g := lifecycle.New(nil,
		lifecycle.Component{Name: "base", Stop: func(ctx context.Context) error { inStop = ctx.Err(); return nil }},
		lifecycle.Component{Name: "relay", Start: func(context.Context) error { cancel(errRoto); return nil }},
		lifecycle.Component{Name: "http", Start: func(context.Context) error { t.Error("http was started"); return nil }},
	)
	require.ErrorIs(t, g.Start(ctx), errRoto)
	require.NoError(t, inStop)
}

func TestAGroupStartsOnce(t *testing.T) {
	g := lifecycle.New(nil)
	require.NoError(t, g.Start(context.Background()))
	require.Error(t, g.Start(context.Background()))
	require.NoError(t, g.Stop(context.Background()))
	require.Error(t, g.Start(context.Background()))
}

func TestStopGoesOnAfterErrorsAndNamesThemAll(t *testing.T) {
	var r recorder
	var log bytes.Buffer
	g := lifecycle.New(slog.New(slog.NewTextHandler(&log, nil)), r.component("base", nil, errRoto), r.component("relay", nil, nil), r.component("http", nil, errors.New("ocupado")))
	require.NoError(t, g.Start(context.Background()))
	err := g.Stop(context.Background())
	require.EqualError(t, err, "stop http: ocupado\nstop base: roto")
	require.Contains(t, log.String(), "component=http")
	require.Equal(t, err, g.Stop(context.Background()), "a second Stop")
	require.Len(t, r.events, 6)
}

func TestConcurrentStopsWaitForTheSameEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stops int
		g := lifecycle.New(nil, lifecycle.Component{Name: "lento", Stop: func(context.Context) error {
			stops++
			time.Sleep(time.Second)
			return errRoto
		}})
		require.NoError(t, g.Start(t.Context()))
		results := make(chan error, 3)
		begin := time.Now()
		for range 3 {
			go func() { results <- g.Stop(t.Context()) }()
		}
		for range 3 {
			require.ErrorIs(t, <-results, errRoto)
			require.Equal(t, time.Second, time.Since(begin))
		}
		require.Equal(t, 1, stops)
	})
}

func TestAComponentThatDoesNotStopIsLeftBehindAndTheOthersStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		release := make(chan struct{})
		g := lifecycle.New(nil,
			r.component("base", nil, nil),
			lifecycle.Component{Name: "sordo", Stop: func(context.Context) error { <-release; return nil }},
			lifecycle.Component{Name: "puntual", Stop: func(ctx context.Context) error { <-ctx.Done(); return fmt.Errorf("2 left: %w", ctx.Err()) }},
		)
		require.NoError(t, g.Start(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begin := time.Now()
		err := g.Stop(ctx)
		require.Less(t, time.Since(begin), 4*time.Second)
		require.ErrorContains(t, err, "stop puntual: 2 left")
		require.ErrorContains(t, err, "stop sordo: left behind")
		require.Equal(t, []string{"start base", "stop base"}, r.events)
		close(release)
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := lifecycle.New(nil, lifecycle.Component{Name: "http", Failed: make(chan error)}, lifecycle.Component{Name: "base"})
		require.NoError(t, g.Start(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, g.Wait(ctx))
	})
}

func TestWaitReturnsTheErrorOfAComponentThatDied(t *testing.T) {
	failed, closed := make(chan error, 1), make(chan error)
	g := lifecycle.New(nil, lifecycle.Component{Name: "base"}, lifecycle.Component{Name: "http", Failed: failed}, lifecycle.Component{Name: "relay", Failed: closed})
	require.NoError(t, g.Start(context.Background()))
	failed <- errRoto
	err := g.Wait(context.Background())
	require.ErrorIs(t, err, errRoto)
	require.EqualError(t, err, "http failed: roto")

	close(closed)
	require.EqualError(t, g.Wait(context.Background()), "relay ended by itself")
}
