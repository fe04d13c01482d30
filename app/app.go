// Package app is the only place that knows both the modules and the platform:
// it builds a process from the configuration, runs it and drains it.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"km0/app/config"
	"km0/modules/pagos/gateway"
	buspg "km0/platform/bus/postgres"
	"km0/platform/consumer"
	"km0/platform/faults"
	"km0/platform/keyed"
	"km0/platform/lifecycle"
	"km0/platform/outbox"
	"km0/platform/postgres/embedded"
	"km0/platform/problem"
)

// App is one process. Build makes it, Start runs it, Stop drains it.
type App struct {
	cfg      config.Config
	logger   *slog.Logger
	registry *prometheus.Registry
	group    *lifecycle.Group

	httpListener, opsListener net.Listener

	server   *embedded.Server
	busPool  *pgxpool.Pool
	claims   []*keyed.Claims
	hosted   []*hosted
	driver   *buspg.Driver
	drain    *consumer.Drain
	metrics  *consumer.Metrics
	gateway  *gateway.Client
	routers  []*message.Router
	mux      *http.ServeMux
	ready    readiness
	progress *os.File
}

// hosted is a module of this process with what belongs to it.
type hosted struct {
	name   string
	module module
	pool   *pgxpool.Pool
	outbox *outbox.Outbox
	relay  *outbox.Relay
}

// Build takes the ports, so that one that is taken is known before anything
// starts, and arms faults. It starts nothing.
func Build(cfg config.Config, logger *slog.Logger) (*App, error) {
	if err := cfg.CheckConsumers(consumerNames()); err != nil {
		return nil, err
	}
	if err := faults.Arm(cfg.Faults); err != nil {
		return nil, err
	}
	a := &App{cfg: cfg, logger: logger, registry: prometheus.NewRegistry(), drain: consumer.NewDrain(), mux: http.NewServeMux()}
	a.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	a.metrics = consumer.NewMetrics(a.registry)
	var err error
	if a.httpListener, err = listen(cfg.HTTP.Addr, "--http"); err != nil {
		return nil, err
	}
	if a.opsListener, err = listen(cfg.Ops.Addr, "--ops"); err != nil {
		_ = a.httpListener.Close()
		return nil, err
	}
	a.group = lifecycle.New(logger, a.components()...)
	return a, nil
}

func listen(addr, flag string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("address %s is taken by another program: stop it, or choose another address with %s", addr, flag)
	case err != nil:
		return nil, fmt.Errorf("listen on %s: %w; choose another address with %s", addr, err, flag)
	}
	return l, nil
}

// HTTPAddr and OpsAddr are the addresses that are listened on.
func (a *App) HTTPAddr() string { return a.httpListener.Addr().String() }
func (a *App) OpsAddr() string  { return a.opsListener.Addr().String() }

// Start returns when the process is ready, or has been stopped again because
// it cannot be.
func (a *App) Start(ctx context.Context) error {
	if err := a.group.Start(ctx); err != nil {
		_ = a.httpListener.Close()
		_ = a.opsListener.Close()
		return err
	}
	a.ready.open()
	return nil
}

// Wait returns when ctx ends, or with an error when a part died by itself.
func (a *App) Wait(ctx context.Context) error { return a.group.Wait(ctx) }

// Stop drains the process: no more requests, no more messages, work in flight
// finishes, its events leave, and then connections and the private server go.
func (a *App) Stop(ctx context.Context) error {
	a.ready.close()
	return a.group.Stop(ctx)
}

// components are the parts in the order of their start; they stop in reverse.
func (a *App) components() []lifecycle.Component {
	parts := []lifecycle.Component{a.serve("operations", a.opsListener, a.opsHandler)}
	if a.cfg.Embedded() {
		parts = append(parts, a.privatePostgres())
	}
	parts = append(parts, lifecycle.Component{Name: "databases", Start: a.openDatabases, Stop: a.closeDatabases})
	if a.cfg.Hosts("pagos") {
		parts = append(parts, a.gatewayComponent())
	}
	return append(parts,
		background("lanes", a.runClaims),
		lifecycle.Component{Name: "bus", Start: a.openBus, Stop: func(context.Context) error { return a.driver.Close() }},
		lifecycle.Component{Name: "relays", Start: a.startRelays, Stop: a.stopRelays},
		a.consumers(),
		background("purges", a.runPurges),
		a.serve("http", a.httpListener, a.apiHandler),
	)
}

// background is a component that is a goroutine: it ends with its context.
func background(name string, run func(ctx context.Context)) lifecycle.Component {
	var (
		cancel context.CancelFunc
		done   = make(chan struct{})
	)
	return lifecycle.Component{
		Name: name,
		Start: func(ctx context.Context) error {
			var running context.Context
			running, cancel = context.WithCancel(context.WithoutCancel(ctx))
			go func() { defer close(done); run(running) }()
			return nil
		},
		Stop: func(ctx context.Context) error {
			cancel()
			select {
			case <-done:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	}
}

// runClaims keeps one lane session for each database.
func (a *App) runClaims(ctx context.Context) {
	var running sync.WaitGroup
	for _, c := range a.claims {
		running.Add(1)
		go func() { defer running.Done(); _ = c.Run(ctx) }()
	}
	running.Wait()
}

func (a *App) apiHandler() http.Handler {
	api := problem.NewAPI(a.mux, "km0", version())
	for _, h := range a.hosted {
		h.module.Routes(api)
	}
	return withDeadline(a.cfg.HTTP.Timeout, withCorrelation(withRecovery(a.logger, a.mux)))
}

// Module is a module of this process by its name, or nil; after Start.
func (a *App) Module(name string) any {
	for _, h := range a.hosted {
		if h.name == name {
			return h.module
		}
	}
	return nil
}
