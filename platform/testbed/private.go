package testbed

import (
	"fmt"
	"sync"
	"syscall"
	"testing"

	"km0/platform/postgres/embedded"
)

// Private is a server that one test stops and starts as it likes. It keeps
// every acknowledged commit through each of that, and its DSNs stay the same.
type Private struct {
	*Server
	dir string

	mu     sync.Mutex
	engine *embedded.Server
}

// StopMode is how a server goes down.
type StopMode int

const (
	// Fast ends sessions and writes everything out, as an operator's restart.
	Fast StopMode = iota
	// Immediate aborts without writing out: the next start recovers from the log.
	Immediate
	// Kill is kill -9 of the server's main process.
	Kill
)

// PrivatePostgres starts a server for this test alone (about a second), and
// stops it at the test's end.
func PrivatePostgres(t testing.TB) *Private {
	t.Helper()
	p := &Private{dir: Dir(t)}
	p.Server = &Server{dsn: p.dsn, prefix: "p", disposable: true}
	p.Start(t)
	t.Cleanup(func() { p.Stop(t, Immediate) })
	return p
}

func (p *Private) dsn(database string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.engine.DSN(database)
}

// Start starts the stopped server on its old data and returns when it serves.
// On a running one it does nothing.
func (p *Private) Start(t testing.TB) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.engine != nil && !ended(p.engine) {
		return
	}
	engine, err := startEngine(p.dir, false, nil)
	if err != nil {
		t.Fatalf("start private PostgreSQL: %v", err)
	}
	p.engine = engine
}

// Stop takes the server down and returns when its main process is gone. On a
// stopped one it does nothing.
func (p *Private) Stop(t testing.TB, mode StopMode) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.stop(mode); err != nil {
		t.Fatalf("stop private PostgreSQL: %v", err)
	}
}

func (p *Private) stop(mode StopMode) error {
	if ended(p.engine) {
		return nil
	}
	ctx, cancel := limited()
	defer cancel()
	if signal, ok := signals[mode]; ok {
		if err := syscall.Kill(p.engine.PID(), signal); err != nil {
			return fmt.Errorf("send %s to process %d: %w", signal, p.engine.PID(), err)
		}
		select {
		case <-p.engine.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return p.engine.Stop(ctx) // also frees the folder of one that has ended
}

var signals = map[StopMode]syscall.Signal{Immediate: syscall.SIGQUIT, Kill: syscall.SIGKILL}

func ended(e *embedded.Server) bool {
	select {
	case <-e.Done():
		return true
	default:
		return false
	}
}
