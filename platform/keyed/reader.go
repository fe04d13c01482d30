package keyed

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	perKey       = 32                    // most rows of one key in memory
	sweepEvery   = time.Second           // a look at the whole table: rows committed late
	horizon      = time.Second           // how far back every look goes
	fetchGap     = time.Millisecond      // between two looks that are not a backlog
	pauseMin     = 50 * time.Millisecond // of a key after its first nack
	pauseMax     = 5 * time.Second
	settleMost   = 1000 // rows per Settle
	settleEnough = 200  // rows that need not wait for more
	settleLinger = 20 * time.Millisecond
	fetchTimeout = 30 * time.Second
	closeTimeout = 5 * time.Second
)

// reader is one subscription. Its goroutines: fetch, settle, a worker per
// message in flight, and one that closes it when the subscription's context
// ends.
type reader struct {
	Config
	out  chan *message.Message
	kick chan struct{} // fetch has something to decide

	base      context.Context // parent of the messages' contexts
	cancel    context.CancelFunc
	fetching  context.Context // ends with the intake
	stopFetch context.CancelFunc
	patience  context.Context // ends some seconds after close began
	impatient context.CancelFunc

	intake  chan struct{} // closed: hand out nothing more
	abandon chan struct{} // closed: wait for no acknowledgement
	noMore  chan struct{} // closed: nothing more will be acknowledged
	fetched chan struct{} // closed: fetchLoop has ended
	settled chan struct{} // closed: settleLoop has ended
	ended   chan struct{} // closed: everything has ended
	ready   chan string   // keys with rows, for a worker
	workers sync.WaitGroup

	stopIntake, finish sync.Once

	mu        sync.Mutex
	lanes     [Lanes]laneState
	epoch     int                // counts what makes fetches under way void
	queues    map[string][]Row   // rows of a key to hand out; ready, or in a worker's hands
	known     map[int64]struct{} // rows in memory
	done      []int64            // settled, to be forgotten before the next fetch
	held      map[string]holding // keys of which nothing is admitted for now
	acked     []Row              // to be settled
	settling  int                // rows in acked or in a Settle under way
	ackSignal chan struct{}      // acked has rows
	settles   chan struct{}      // a Settle has succeeded
	plan      plan
}

type laneState struct {
	owned    bool
	busy     int    // rows in flight or acknowledged and unsettled
	released func() // the lane was revoked: call when busy is 0
}

// holding keeps a key out: until its pause is over, or its full queue has
// room. Rows are admitted again from a fetch that starts at or before resume,
// so that none is overtaken.
type holding struct {
	until    time.Time // zero: waits for room
	resume   int64
	failures int
}

func newReader(ctx context.Context, cfg Config) *reader {
	r := &reader{
		Config: cfg,
		out:    make(chan *message.Message), kick: make(chan struct{}, 1),
		ready:  make(chan string, 2*buffered(cfg)),
		intake: make(chan struct{}), abandon: make(chan struct{}), noMore: make(chan struct{}),
		fetched: make(chan struct{}), settled: make(chan struct{}), ended: make(chan struct{}),
		queues: map[string][]Row{}, known: map[int64]struct{}{}, held: map[string]holding{},
		ackSignal: make(chan struct{}, 1), settles: make(chan struct{}, 1),
	}
	r.base, r.cancel = context.WithCancel(ctx)
	r.fetching, r.stopFetch = context.WithCancel(r.base)
	r.patience, r.impatient = context.WithCancel(context.WithoutCancel(ctx))
	return r
}

func (r *reader) start() {
	r.workers.Add(r.Concurrency)
	for range r.Concurrency {
		go r.worker()
	}
	go r.fetchLoop()
	go r.settleLoop()
	go func() {
		select {
		case <-r.base.Done():
			r.close()
		case <-r.ended:
		}
	}()
}

// buffered is how many rows are read ahead.
func buffered(cfg Config) int { return min(max(8*cfg.Concurrency, 256), 4096) }

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (r *reader) wake() {
	r.mu.Lock()
	r.plan.woken = true
	r.mu.Unlock()
	poke(r.kick)
}

// drain hands out nothing more and waits until nothing is in flight or
// unsettled.
func (r *reader) drain(ctx context.Context) error {
	r.stopIntake.Do(func() { close(r.intake); r.stopFetch() })
	quiet := make(chan struct{})
	go func() { // ends at the latest when close abandons what is in flight
		<-r.fetched
		r.workers.Wait()
		close(quiet)
	}()
	select {
	case <-quiet:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		r.mu.Lock()
		left := r.settling
		r.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-r.settles:
		case <-r.ended:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// close ends every goroutine and gives the lanes back.
func (r *reader) close() {
	r.finish.Do(func() {
		r.stopIntake.Do(func() { close(r.intake); r.stopFetch() })
		close(r.abandon)
		<-r.fetched
		r.workers.Wait()
		close(r.noMore)
		timer := time.AfterFunc(closeTimeout, r.impatient)
		<-r.settled
		timer.Stop()
		r.impatient()
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		r.Claims.leave(ctx, r.Group)
		cancel()
		r.cancel()
		close(r.out)
		close(r.ended)
	})
	<-r.ended
}

// worker hands out the rows of one key after another. Each has a context of
// its own above those of its messages: one shared parent would make every
// message register there under one lock.
func (r *reader) worker() {
	defer r.workers.Done()
	ctx, cancel := context.WithCancel(r.base)
	defer cancel()
	for {
		select {
		case key := <-r.ready:
			r.work(ctx, key)
		case <-r.intake:
			return
		}
	}
}

// work hands out the rows of one key, one by one.
func (r *reader) work(ctx context.Context, key string) {
	for {
		row, ok := r.next(key)
		if !ok {
			return
		}
		outcome, refused := r.deliver(ctx, row)
		switch {
		case outcome == acknowledged:
			r.settleLater(key, row)
		case outcome == abandoned:
			r.drop(key, row)
			return
		case refused != nil && r.setAside(row, refused):
			r.mu.Lock()
			r.epoch++ // a fetch under way does not know that the key waits
			r.mu.Unlock()
			r.drop(key, row)
			return
		default:
			r.pause(key, row)
			return
		}
	}
}

// next takes the first row of key, or ends the work on the key.
func (r *reader) next(key string) (Row, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	queue := r.queues[key]
	if len(queue) == 0 {
		delete(r.queues, key)
		return Row{}, false
	}
	row := queue[0]
	r.queues[key] = queue[1:]
	if h, ok := r.held[key]; ok && h.until.IsZero() && len(queue) <= perKey/2 {
		r.plan.rescan(h.resume)
		poke(r.kick)
	}
	r.lanes[row.Lane].busy++
	return row, true
}

type outcome int

const (
	acknowledged outcome = iota
	nacked
	abandoned
)

// deliver hands out one row and waits for what becomes of it. The error is a
// refusal for good.
func (r *reader) deliver(parent context.Context, row Row) (outcome, error) {
	select {
	case <-r.intake:
		return abandoned, nil
	default:
	}
	refused := &refusal{}
	ctx, cancel := context.WithCancel(context.WithValue(parent, refusalKey{}, refused))
	defer cancel()
	row.Message.SetContext(ctx)
	select {
	case r.out <- row.Message:
	case <-r.intake:
		return abandoned, nil
	}
	select {
	case <-row.Message.Acked():
		return acknowledged, nil
	case <-row.Message.Nacked():
		return nacked, refused.err
	case <-r.abandon:
		return abandoned, nil
	}
}

// settleLater hands an acknowledged row to settleLoop; the key goes on.
func (r *reader) settleLater(key string, row Row) {
	r.mu.Lock()
	r.acked = append(r.acked, row)
	r.settling++
	if h, ok := r.held[key]; ok && !h.until.IsZero() {
		delete(r.held, key)
	}
	r.mu.Unlock()
	poke(r.ackSignal)
}

// drop forgets row and the queue behind it; they are fetched again.
func (r *reader) drop(key string, row Row) {
	r.mu.Lock()
	released := r.forget(key, row)
	r.plan.rescan(row.Position - 1)
	r.mu.Unlock()
	call(released)
	poke(r.kick)
}

// pause keeps the key out for a growing, jittered while.
func (r *reader) pause(key string, row Row) {
	r.mu.Lock()
	h := r.held[key]
	h.failures++
	wait := min(pauseMin<<min(h.failures-1, 10), pauseMax)
	wait = time.Duration(float64(wait) * (0.8 + 0.4*rand.Float64()))
	h.until, h.resume = time.Now().Add(wait), row.Position-1
	r.held[key] = h
	released := r.forget(key, row)
	r.mu.Unlock()
	call(released)
	poke(r.kick)
}

// setAside stores a refusal. If that fails the row is tried again like any.
func (r *reader) setAside(row Row, reason error) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.base), closeTimeout)
	defer cancel()
	if err := r.Table.SetAside(ctx, row.Position, reason.Error()); err != nil {
		r.Logger.Error("set a row aside", "position", row.Position, "error", err)
		return false
	}
	r.Logger.Error("row set aside, its key waits", "position", row.Position, "id", row.Message.UUID, "reason", reason)
	return true
}

// forget removes row and the key's queue from memory. The caller holds mu and
// calls what is returned without it.
func (r *reader) forget(key string, row Row) []func() {
	delete(r.known, row.Position)
	for _, behind := range r.queues[key] {
		delete(r.known, behind.Position)
	}
	delete(r.queues, key)
	return r.idle(row.Lane)
}

// idle counts one row less in a lane and returns what a revocation waits for.
func (r *reader) idle(lane int16) []func() {
	l := &r.lanes[lane]
	l.busy--
	if l.busy > 0 || l.released == nil {
		return nil
	}
	released := l.released
	l.released = nil
	return []func(){released}
}

func call(functions []func()) {
	for _, f := range functions {
		f()
	}
}
