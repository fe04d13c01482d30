package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// stopTimeout is how long Serve waits for calls under way.
const stopTimeout = 5 * time.Second

// Simulator is a payment gateway with a ledger in one file. Cards whose token
// starts with "tok_rechazada" are declined. What it answers is on disk before
// it answers. It is safe for concurrent use; one file has one simulator.
type Simulator struct {
	db       *bolt.DB
	opts     Options
	started  time.Time
	injected atomic.Int64

	mu      sync.Mutex
	refused map[string]int // calls under keys that Unavailable hits
}

// OpenSimulator opens or creates the ledger at path, in a folder that exists.
// A file that another simulator has open is an error after a second, and so
// are options outside their limits.
func OpenSimulator(path string, opts Options) (*Simulator, error) {
	if err := opts.check(); err != nil {
		return nil, fmt.Errorf("gateway simulator: %w", err)
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open the gateway's ledger %s: another simulator has it open: stop that one or choose another file", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the gateway's ledger %s: %w", path, err)
	}
	db.MaxBatchDelay = time.Millisecond // long enough to share a sync, short beside it
	err = db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(ledger)
		return err
	})
	if err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("prepare the gateway's ledger %s: %w", path, err)
	}
	return &Simulator{db: db, opts: opts.withDefaults(), started: time.Now(), refused: map[string]int{}}, nil
}

// Close closes the ledger, so that another simulator can open it. Stop serving
// first: calls that are still under way are answered with 500.
func (s *Simulator) Close() error { return s.db.Close() }

// Serve answers on l, which it closes, until ctx ends. Then it holds no answer
// back any longer, lets calls under way finish for five seconds, cuts off what
// is left, and returns nil if nothing was.
func (s *Simulator) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: s.opts.Latency + s.opts.HangFor + 10*time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve the gateway simulator: %w", err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	err := server.Shutdown(stopping)
	if err != nil {
		err = fmt.Errorf("stop the gateway simulator: calls were cut off: %w", errors.Join(err, server.Close()))
	}
	<-served
	return err
}
