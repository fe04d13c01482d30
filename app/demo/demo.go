// Package demo puts a system through a bad day and keeps the books: orders at
// a live rate, events delivered twice, a payment gateway that fails for a
// while, malformed messages, and a worker process that is killed half way.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"km0/app/reconcile"
	"km0/modules/pagos/gateway"
	"km0/platform/postgres"
	"km0/platform/postgres/embedded"
)

// Options of a demonstration.
type Options struct {
	Orders   int
	Rate     int    // orders a second
	State    string // a folder that is empty or does not exist; a temporary one if this is ""
	Keep     bool   // do not remove it
	Binary   string // the km0 to run as the worker
	Bin      string // folder of PostgreSQL's programs, found if empty
	Progress io.Writer
	Settle   time.Duration // longest wait for everything to be settled
}

// Result is what happened.
type Result struct {
	Orders       int               `json:"orders"`
	Repeats      int               `json:"http_repeats"` // requests sent again because the worker was away
	Cancelled    int               `json:"cancelled_by_client"`
	Malformed    int               `json:"malformed_messages"`
	WorkerKills  int               `json:"worker_kills"`
	GatewayFails int64             `json:"gateway_failures"`
	Seconds      float64           `json:"seconds"`
	Counts       reconcile.Counts  `json:"counts"`
	Checks       []reconcile.Check `json:"checks"`
	OK           bool              `json:"ok"`
}

// stage is what the worker needs: databases and a gateway.
type stage struct {
	opts      Options
	server    *embedded.Server
	pools     reconcile.Databases
	simulator *gateway.Simulator
	gateway   *gateway.Client
	url       string
	closers   []func()
}

var databases = []string{"pedidos", "inventario", "pagos", "bus"}

// Run makes the state, runs the demonstration and removes the state again. The
// error says what kept it from running to its end; broken invariants are in
// the result.
func Run(ctx context.Context, opts Options) (result Result, err error) {
	s := &stage{opts: opts}
	defer func() {
		if ctx.Err() != nil {
			err = fmt.Errorf("broken off: %w", context.Cause(ctx))
		}
		s.close(ctx.Err() == nil && (err != nil || !result.OK))
	}()
	if err := s.open(ctx); err != nil {
		return Result{}, err
	}
	w := &worker{stage: s}
	s.closers = append(s.closers, w.kill)
	if err := w.start(ctx); err != nil {
		return Result{}, err
	}
	initial, err := s.restock(ctx)
	if err != nil {
		return Result{}, err
	}
	started := time.Now()
	result.Orders = opts.Orders
	if err := s.place(ctx, w, &result); err != nil {
		return Result{}, err
	}
	if err := s.settle(ctx, w); err != nil {
		return Result{}, fmt.Errorf("%w\n%s", err, w.tail())
	}
	result.Seconds = time.Since(started).Seconds()
	return s.audit(ctx, result, initial)
}

func (s *stage) open(ctx context.Context) error {
	dir, err := folder(s.opts.State)
	s.opts.State = dir // what close removes
	if err != nil {
		return err
	}
	s.server, err = embedded.Start(ctx, embedded.Config{Dir: dir, BinDir: s.opts.Bin, Logger: slog.New(slog.DiscardHandler), Progress: s.opts.Progress})
	if err != nil {
		return err
	}
	s.closers = append(s.closers, func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
		defer cancel()
		_ = s.server.Stop(stopping)
	})
	if err := s.openPools(ctx); err != nil {
		return err
	}
	return s.openGateway(ctx)
}

// folder makes the folder of a demonstration. It is removed with all that is in
// it, so it must be nobody else's: "" comes back unless it is ours.
func folder(dir string) (ours string, err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "km0-demo-"); err != nil {
			return "", fmt.Errorf("make a folder for the demonstration: %w", err)
		}
	} else if dir, err = empty(dir); err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the database's user, who is not root, has to enter it
		return dir, fmt.Errorf("prepare %s: %w", dir, err)
	}
	return dir, nil
}

// empty makes a folder or finds it empty.
func empty(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("folder of the demonstration: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("folder of the demonstration: %w", err)
	}
	found, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("folder of the demonstration: %w", err)
	}
	if len(found) > 0 {
		return "", fmt.Errorf("%s is not empty, and a demonstration removes its folder at the end: name one that does not exist", dir)
	}
	return dir, nil
}

func (s *stage) openPools(ctx context.Context) error {
	for i, pool := range []**pgxpool.Pool{&s.pools.Pedidos, &s.pools.Inventario, &s.pools.Pagos, &s.pools.Bus} {
		name := "km0_" + databases[i]
		if err := s.server.CreateDatabases(ctx, name); err != nil {
			return err
		}
		var err error
		if *pool, err = postgres.Open(ctx, s.server.DSN(name), postgres.PoolOptions{MaxConns: 4, ApplicationName: "km0 demo"}); err != nil {
			return err
		}
		s.closers = append(s.closers, (*pool).Close)
	}
	return nil
}

// openGateway lets a tenth of the charges fail at first, and a few be made
// without an answer in time.
func (s *stage) openGateway(ctx context.Context) (err error) {
	s.simulator, err = gateway.OpenSimulator(filepath.Join(s.opts.State, "demo-gateway.db"), gateway.Options{
		Unavailable: 0.1, UnavailableCalls: 2, Hang: 0.01, HangFor: 5 * time.Second,
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the gateway simulator: %w", err)
	}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan struct{})
	go func() { defer close(served); _ = s.simulator.Serve(serving, l) }()
	s.closers = append(s.closers, func() { cancel(); <-served; _ = s.simulator.Close() })
	s.url = "http://" + l.Addr().String()
	s.gateway, err = gateway.NewClient(s.url, 10*time.Second)
	if err == nil {
		s.closers = append(s.closers, s.gateway.Close)
	}
	return err
}

// restock fills the shelves, all but one, and returns what there is.
func (s *stage) restock(ctx context.Context) (map[string]int64, error) {
	_, err := s.pools.Inventario.Exec(ctx, `UPDATE stock SET unidades = unidades + 10 * $1 WHERE producto <> 'queso-curado'`, s.opts.Orders)
	if err != nil {
		return nil, fmt.Errorf("restock: %w", err)
	}
	rows, err := s.pools.Inventario.Query(ctx, `SELECT producto, unidades FROM stock`)
	if err != nil {
		return nil, fmt.Errorf("restock: %w", err)
	}
	defer rows.Close()
	stock := map[string]int64{}
	for rows.Next() {
		var producto string
		var unidades int64
		if err := rows.Scan(&producto, &unidades); err != nil {
			return nil, fmt.Errorf("restock: %w", err)
		}
		stock[producto] = unidades
	}
	return stock, rows.Err()
}

// settle waits until nothing is left to do.
func (s *stage) settle(ctx context.Context, w *worker) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Settle)
	defer cancel()
	for calm := 0; calm < 3; { // an event may be between outbox and bus
		done, err := reconcile.Settled(ctx, s.pools)
		switch {
		case err != nil:
			return err
		case done:
			calm++
		default:
			calm = 0
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-w.waiting:
			return errors.New("the worker ended before everything was settled")
		case <-ctx.Done():
			return fmt.Errorf("not settled after %s: %w", s.opts.Settle, ctx.Err())
		}
	}
	return nil
}

// audit keeps the books, and checks that the bad day really happened.
func (s *stage) audit(ctx context.Context, r Result, initial map[string]int64) (Result, error) {
	report, err := reconcile.Run(ctx, s.pools, s.gateway, initial)
	if err != nil {
		return Result{}, err
	}
	totals, err := s.gateway.Resumen(ctx)
	if err != nil {
		return Result{}, err
	}
	r.Counts, r.GatewayFails = report.Counts, totals.FallosInyectados
	var accepted int64
	for _, n := range report.Counts.Orders {
		accepted += n
	}
	check := func(name string, want, got any) {
		c := reconcile.Check{Name: name, Want: fmt.Sprint(want), Got: fmt.Sprint(got)}
		c.OK = c.Want == c.Got
		report.Checks = append(report.Checks, c)
	}
	check("every order that was confirmed is there", r.Orders, accepted)
	check("the worker was killed", 1, r.WorkerKills)
	check("events were delivered twice", true, r.Counts.Duplicates > 0)
	check("the gateway failed for a while", true, r.GatewayFails > 0)
	check("malformed messages are dead letters of each consumer", expectedLetters, r.Counts.DeadLetters["datos"]+r.Counts.DeadLetters["contrato"])
	check("no other dead letters", 0, r.Counts.DeadLetters["transitorio_agotado"]+r.Counts.DeadLetters["fallo"])
	r.Checks, r.OK = report.Checks, report.OK()
	return r, nil
}

func (s *stage) close(failed bool) {
	for i := len(s.closers) - 1; i >= 0; i-- {
		s.closers[i]()
	}
	say := func(what ...any) {
		if s.opts.Progress != nil {
			_, _ = fmt.Fprintln(s.opts.Progress, what...)
		}
	}
	switch {
	case s.opts.State == "":
		return
	case s.opts.Keep:
		say("kept:", s.opts.State)
		return
	case failed:
		say("the worker's log was in", filepath.Join(s.opts.State, "worker.log"), "(use --keep to keep it)")
	}
	_ = os.RemoveAll(s.opts.State)
}
