package app

import (
	"context"
	"math/rand/v2"
	"time"

	"km0/platform/inbox"
)

// runPurges removes done work that is older than its retention, now and then;
// with jitter, so that instances do not all do it at once.
func (a *App) runPurges(ctx context.Context) {
	for {
		every := a.cfg.Retention.Every
		wait := time.Duration(float64(every) * (0.5 + rand.Float64()))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		a.purge(ctx)
	}
}

func (a *App) purge(ctx context.Context) {
	report := func(what string, n int64, err error) {
		switch {
		case ctx.Err() != nil:
		case err != nil:
			a.logger.Error("purge", "what", what, "error", err)
		case n > 0:
			a.logger.Info("purged", "what", what, "rows", n)
		}
	}
	n, err := a.driver.Purge(ctx, a.cfg.Retention.Bus)
	report("bus", n, err)
	for _, h := range a.hosted {
		n, err := h.outbox.Purge(ctx, a.cfg.Retention.Outbox)
		report(h.name+" outbox", n, err)
		n, err = inbox.Purge(ctx, h.pool, a.cfg.Retention.Inbox)
		report(h.name+" inbox", n, err)
	}
}
