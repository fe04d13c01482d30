package consumer

import (
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
)

// batch lets messages in flight share a transaction. The first to arrive waits
// for others, runs them all, one after the other, each with its inbox record,
// and commits once. If one fails, everything is rolled back and each runs in a
// transaction of its own, with its own time, and stays alone if it is tried
// again: a bad message hurts only itself.
func (b *builder) batch() message.HandlerMiddleware {
	gatherer := &gatherer{size: b.Settings.Batch.Size, wait: b.Settings.Batch.Wait}
	return func(next message.HandlerFunc) message.HandlerFunc {
		alone := b.transaction(next)
		return func(m *message.Message) ([]*message.Message, error) {
			d := deliveryOf(m.Context())
			if d.alone {
				return alone(m)
			}
			seat, group := gatherer.join(m)
			if group != nil { // first to arrive, and now the group is complete
				together := b.runTogether(group, next)
				for _, s := range group {
					s.committed <- together
				}
			}
			if <-seat.committed {
				return nil, nil
			}
			d.alone = true
			ctx, cancel := b.limited(m.Context()) // the batch may have used up the time
			defer cancel()
			m.SetContext(ctx)
			return alone(m)
		}
	}
}

// runTogether reports whether the whole group was committed.
func (b *builder) runTogether(group []*seat, next message.HandlerFunc) bool {
	if len(group) == 1 {
		return false
	}
	_, err := b.inTransaction(group[0].message.Context(), func(tx pgx.Tx) ([]*message.Message, error) {
		for _, s := range group {
			deliveryOf(s.message.Context()).tx = tx
			if err := safely(next, s.message); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	if err != nil {
		b.Logger.Debug("batch rolled back, its messages go one by one", "messages", len(group), "error", err)
	}
	return err == nil
}

// safely keeps the panic of one message from the goroutine of another; alone,
// it panics again in its own.
func safely(next message.HandlerFunc, m *message.Message) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	_, err = next(m)
	return err
}

type seat struct {
	message   *message.Message
	committed chan bool
}

// gatherer forms groups of at most size messages that arrive within wait.
type gatherer struct {
	size int
	wait time.Duration

	mu   sync.Mutex
	open *table
}

type table struct {
	seats []*seat
	full  chan struct{}
}

// join takes a seat. Whoever sits down first gets the group once it is
// complete; the others get nil at once.
func (g *gatherer) join(m *message.Message) (*seat, []*seat) {
	s := &seat{m, make(chan bool, 1)}
	g.mu.Lock()
	t := g.open
	first := t == nil
	if first {
		t = &table{full: make(chan struct{})}
		g.open = t
	}
	t.seats = append(t.seats, s)
	if len(t.seats) >= g.size {
		g.open = nil
		close(t.full)
	}
	g.mu.Unlock()
	if !first {
		return s, nil
	}
	timer := time.NewTimer(g.wait)
	defer timer.Stop()
	select {
	case <-t.full:
	case <-timer.C:
		g.mu.Lock()
		if g.open == t {
			g.open = nil
		}
		g.mu.Unlock()
	}
	return s, t.seats
}
