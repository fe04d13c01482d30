package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	buspg "km0/platform/bus/postgres"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"km0/platform/bus"
	"km0/platform/consumer"
	"km0/platform/faults"
	"km0/platform/lifecycle"
	"km0/platform/outbox"
)

// openBus opens the bus, builds the modules on it and declares everything they
// read before anything is published.
func (a *App) openBus(ctx context.Context) error {
	busClaims := a.claims[0]
	driver, err := buspg.Open(buspg.Config{Pool: a.busPool, Claims: busClaims, MaxBytes: a.cfg.Bus.MaxMessage, Logger: a.logger})
	if err != nil {
		return err
	}
	a.driver = driver
	var topology bus.Topology
	for _, m := range catalogue {
		for _, h := range a.hosted {
			if h.name != m.name {
				continue
			}
			h.module = m.build(parts{db: h.pool, outbox: h.outbox, pasarela: a.gateway, logger: a.logger.With("module", h.name)})
			for _, c := range h.module.Consumers() {
				topology.Subscriptions = append(topology.Subscriptions, a.subscription(c))
			}
		}
	}
	if err := driver.Declare(ctx, topology); err != nil {
		_ = driver.Close()
		return err
	}
	a.registry.MustRegister(&lagCollector{app: a})
	return nil
}

func (a *App) settings(c consumer.Consumer) consumer.Settings {
	return a.cfg.Consumer(c.Name).Over(c.Settings).Over(consumer.Defaults())
}

func (a *App) subscription(c consumer.Consumer) bus.Subscription {
	return bus.Subscription{
		Consumer: c.Name, Topic: c.Topic, Concurrency: a.settings(c).Concurrency, Types: slices.Sorted(maps.Keys(c.Handlers)),
	}
}

func (a *App) startRelays(ctx context.Context) error {
	publisher := faults.Duplicate(a.driver.Publisher(), a.cfg.Bus.Duplicates)
	for i, h := range a.hosted {
		var err error
		h.relay, err = outbox.NewRelay(outbox.RelayConfig{Outbox: h.outbox, Publisher: publisher, Claims: a.claims[i+1], Logger: a.logger})
		if err == nil {
			err = h.relay.Start(ctx)
		}
		if err != nil {
			for _, before := range a.hosted[:i] {
				_ = before.relay.Stop(ctx)
			}
			return err
		}
	}
	return nil
}

func (a *App) stopRelays(ctx context.Context) error {
	var failed []error
	for _, h := range a.hosted {
		failed = append(failed, h.relay.Stop(ctx))
	}
	return errors.Join(failed...)
}

// consumers runs one router for each module.
func (a *App) consumers() lifecycle.Component {
	died := make(chan error, len(catalogue))
	var running sync.WaitGroup
	return lifecycle.Component{
		Name: "consumers", Failed: died,
		Start: func(ctx context.Context) error {
			for _, h := range a.hosted {
				router, err := a.router(h)
				if err != nil {
					return err
				}
				a.routers = append(a.routers, router)
			}
			for _, router := range a.routers {
				running.Add(1)
				go func() {
					defer running.Done()
					err := router.Run(context.WithoutCancel(ctx))
					if !a.ready.closed() {
						died <- errors.Join(errors.New("a router ended by itself"), err)
					}
				}()
			}
			for _, router := range a.routers {
				select {
				case <-router.Running():
				case err := <-died:
					return err
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		},
		Stop: func(ctx context.Context) error {
			a.ready.close()
			failed := []error{a.drain.Stop(ctx)}
			for _, router := range a.routers {
				failed = append(failed, router.Close())
			}
			running.Wait()
			return errors.Join(failed...)
		},
	}
}

func (a *App) router(h *hosted) (*message.Router, error) {
	// The chain logs failures; Watermill would log payloads.
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: a.cfg.StopTimeout}, watermill.NopLogger{})
	if err != nil {
		return nil, fmt.Errorf("router of %s: %w", h.name, err)
	}
	for _, c := range h.module.Consumers() {
		c.Settings = a.settings(c)
		sub, err := a.driver.Subscriber(a.subscription(c))
		if err != nil {
			return nil, fmt.Errorf("subscribe %s: %w", c.Name, err)
		}
		err = consumer.Register(router, sub, c, consumer.Deps{
			DB: h.pool, Logger: a.logger, Metrics: a.metrics, Drain: a.drain, Committed: h.outbox.Wake,
		})
		if err != nil {
			return nil, err
		}
	}
	return router, nil
}
