package keyed

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	wakeChannel  = "km0_despertar" // payload: the name given to Notify
	lanesChannel = "km0_carriles"  // somebody joined, left or released lanes

	notifyEvery    = 10 * time.Millisecond
	rebalanceEvery = time.Second
	reconnectMin   = 50 * time.Millisecond
	reconnectMax   = 2 * time.Second
)

// holder is a reader that works on lanes. Calls come from one goroutine.
type holder interface {
	// assign adds lanes this process now owns.
	assign(lanes []int16)
	// revoke asks to finish with lanes; released is called, from any
	// goroutine, when nothing of them is in flight or unsettled.
	revoke(lanes []int16, released func())
	// lost says that every lane is gone at once.
	lost()
	wake()
}

// Claims holds one session to a database, owns lanes with it and listens there
// for wake-ups of other processes. Members of a group share its lanes evenly;
// who they are is read from pg_locks, so the death of a session is the only
// failure detector needed. The session must be a direct one: a pooler in
// transaction mode would give its locks to strangers.
type Claims struct {
	cfg    *pgx.ConnConfig
	logger *slog.Logger
	kick   chan struct{}
	ended  chan struct{}

	mu       sync.Mutex
	members  map[string]*membership
	left     []*membership // to be unlocked
	toNotify map[string]struct{}
	alone    bool // no other process has a session on this database
	up       bool // the session is open and lanes are shared
}

// Up says whether the session is open: readers of this process get lanes.
func (c *Claims) Up() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up
}

type membership struct {
	group    string
	wakeOn   string
	holder   holder
	joined   bool // the membership lock is held by the present session
	owned    map[int16]bool
	revoking map[int16]bool
	released []int16 // given up by the holder, still locked
	gone     chan struct{}
}

// NewClaims prepares a session to the database of cfg; Run opens it.
func NewClaims(cfg *pgx.ConnConfig, logger *slog.Logger) *Claims {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Claims{
		cfg: cfg, logger: logger,
		kick: make(chan struct{}, 1), ended: make(chan struct{}),
		members: map[string]*membership{}, toNotify: map[string]struct{}{},
	}
}

// Run keeps the session, shares lanes and reconnects after a loss, until ctx
// ends. Call it once; readers get lanes only while it runs.
func (c *Claims) Run(ctx context.Context) error {
	defer close(c.ended)
	wait := reconnectMin
	for ctx.Err() == nil {
		opened, err := c.session(ctx)
		c.loseAll()
		if ctx.Err() != nil {
			return nil
		}
		if opened { // a server that stays away is one line, not one a second
			c.logger.Warn("lane session lost, reconnecting", "database", c.cfg.Database, "error", err)
			wait = reconnectMin
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, reconnectMax)
	}
	return nil
}

// Notify wakes the readers that wake on name in every other process, at most
// once per 10 ms and name. It returns at once; call it after COMMIT, never
// inside the transaction (NOTIFY serialises all commits of the server).
func (c *Claims) Notify(name string) {
	c.mu.Lock()
	skip := c.alone
	if !skip {
		c.toNotify[name] = struct{}{}
	}
	c.mu.Unlock()
	if !skip {
		c.poke()
	}
}

func (c *Claims) poke() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// join makes h a member of group. The lanes come through h.assign.
func (c *Claims) join(group, wakeOn string, h holder) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.members[group] != nil {
		return fmt.Errorf("group %q is already read by this process", group)
	}
	c.members[group] = &membership{
		group: group, wakeOn: wakeOn, holder: h,
		owned: map[int16]bool{}, revoking: map[int16]bool{}, gone: make(chan struct{}),
	}
	c.poke()
	return nil
}

// leave gives back all lanes of group and waits until they are unlocked, the
// session is over or Run has ended. The holder must have stopped.
func (c *Claims) leave(ctx context.Context, group string) {
	c.mu.Lock()
	m := c.members[group]
	delete(c.members, group)
	if m != nil {
		c.left = append(c.left, m)
	}
	c.mu.Unlock()
	if m == nil {
		return
	}
	c.poke()
	select {
	case <-m.gone:
	case <-c.ended:
	case <-ctx.Done():
	}
}

// wakeLocal wakes the readers of this process that wake on name.
func (c *Claims) wakeLocal(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.members {
		if name == "" || m.wakeOn == name {
			m.holder.wake()
		}
	}
}

func (c *Claims) loseAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alone, c.up = false, false
	for _, m := range c.members {
		m.joined = false
		clear(m.owned)
		clear(m.revoking)
		m.released = nil
		m.holder.lost()
	}
	for _, m := range c.left {
		close(m.gone)
	}
	c.left = nil
}

// session is the life of one connection; it reports whether it had one.
func (c *Claims) session(ctx context.Context) (opened bool, err error) {
	conn, err := pgx.ConnectConfig(ctx, c.cfg)
	if err != nil {
		return false, err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	s := &laneSession{c: c, conn: conn}
	if err := s.open(ctx); err != nil {
		return true, err
	}
	c.logger.Debug("lane session open", "database", c.cfg.Database)
	for {
		next := s.rebalanced.Add(rebalanceEvery)
		if !time.Now().Before(next) || s.changed() {
			if err := s.rebalance(ctx); err != nil {
				return true, fmt.Errorf("share lanes: %w", err)
			}
			continue
		}
		if err := s.notify(ctx); err != nil {
			return true, fmt.Errorf("notify: %w", err)
		}
		if err := s.listen(ctx, next); err != nil {
			return true, err
		}
	}
}

// laneSession does the work of Claims on one connection.
type laneSession struct {
	c          *Claims
	conn       *pgx.Conn
	rebalanced time.Time
	notified   time.Time
}

func (s *laneSession) open(ctx context.Context) error {
	// A notification needs no flush to disk: a lost one costs a poll interval.
	_, err := s.conn.Exec(ctx, "SET synchronous_commit = off; LISTEN "+wakeChannel+"; LISTEN "+lanesChannel)
	if err != nil {
		return err
	}
	_, err = s.conn.Exec(ctx, "SELECT pg_advisory_lock_shared($1, $2)", sessionsKey, memberKey)
	return err
}

// changed says whether members joined, left or released lanes here.
func (s *laneSession) changed() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if len(s.c.left) > 0 {
		return true
	}
	for _, m := range s.c.members {
		if !m.joined || len(m.released) > 0 {
			return true
		}
	}
	return false
}

// notify sends what Notify collected, not more often than notifyEvery.
func (s *laneSession) notify(ctx context.Context) error {
	if time.Since(s.notified) < notifyEvery {
		return nil
	}
	s.c.mu.Lock()
	names := make([]string, 0, len(s.c.toNotify))
	for name := range s.c.toNotify {
		names = append(names, name)
	}
	clear(s.c.toNotify)
	s.c.mu.Unlock()
	if len(names) == 0 {
		return nil
	}
	s.notified = time.Now()
	_, err := s.conn.Exec(ctx, "SELECT pg_notify($1, n) FROM unnest($2::text[]) n", wakeChannel, names)
	return err
}

// listen waits for a notification, a kick, or until the deadline.
func (s *laneSession) listen(ctx context.Context, until time.Time) error {
	s.c.mu.Lock()
	if len(s.c.toNotify) > 0 { // held back by notifyEvery
		until = s.notified.Add(notifyEvery)
	}
	s.c.mu.Unlock()
	waiting, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-s.c.kick:
			cancel()
		case <-stop:
		}
	}()
	n, err := s.conn.WaitForNotification(waiting)
	close(stop)
	<-stopped
	switch {
	case err != nil && waiting.Err() != nil && !s.conn.IsClosed():
		return ctx.Err()
	case err != nil:
		return err
	case n.PID == s.conn.PgConn().PID(): // our own
	case n.Channel == wakeChannel:
		s.c.wakeLocal(n.Payload)
	case n.Channel == lanesChannel:
		s.rebalanced = time.Time{}
	}
	return nil
}

// sessionsKey and memberKey are the two halves of advisory lock keys that are
// not a lane of a group.
const (
	sessionsKey int32 = 0x6b6d30 // "km0"
	memberKey   int32 = 1 << 20
)

func groupKey(group string) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(group))
	return int32(h.Sum32())
}

var errSessionGone = errors.New("the session lost its locks")
