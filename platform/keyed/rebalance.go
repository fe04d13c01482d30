package keyed

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// lock is one advisory lock on this database, whoever holds it.
type lock struct {
	group, object int32
	mine          bool
}

// locksQuery reads every two-key advisory lock of this database. pg_locks
// shows the keys as unsigned oids.
const locksQuery = `
SELECT (classid::bigint::bit(32))::int, (objid::bigint::bit(32))::int, pid = pg_backend_pid()
FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 2 AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// rebalance brings the locks of this session to what they should be: those of
// groups that left are given back, new groups join, and each group owns its
// fair share of lanes.
func (s *laneSession) rebalance(ctx context.Context) error {
	announce, err := s.unlockLeft(ctx)
	if err != nil {
		return err
	}
	joined, err := s.joinNew(ctx)
	if err != nil {
		return err
	}
	rows, err := s.conn.Query(ctx, locksQuery)
	if err != nil {
		return err
	}
	locks, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l lock, err error) {
		return l, row.Scan(&l.group, &l.object, &l.mine)
	})
	if err != nil {
		return err
	}
	s.countSessions(locks)
	for _, m := range s.present() {
		released, err := s.share(ctx, m, locks)
		if err != nil {
			return err
		}
		announce = announce || released
	}
	if announce || joined {
		if _, err := s.conn.Exec(ctx, "SELECT pg_notify($1, '')", lanesChannel); err != nil {
			return err
		}
	}
	s.rebalanced = time.Now()
	return nil
}

func (s *laneSession) present() []*membership {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	list := make([]*membership, 0, len(s.c.members))
	for _, m := range s.c.members {
		list = append(list, m)
	}
	return list
}

func (s *laneSession) unlockLeft(ctx context.Context) (bool, error) {
	s.c.mu.Lock()
	left := s.c.left
	s.c.left = nil
	s.c.mu.Unlock()
	for i, m := range left {
		if m.joined {
			lanes := m.released
			for lane := range m.owned {
				if !slices.Contains(lanes, lane) {
					lanes = append(lanes, lane)
				}
			}
			if err := s.unlock(ctx, m.group, lanes); err != nil {
				s.c.mu.Lock()
				s.c.left = append(s.c.left, left[i:]...) // loseAll closes them
				s.c.mu.Unlock()
				return false, err
			}
			if _, err := s.conn.Exec(ctx, "SELECT pg_advisory_unlock_shared($1, $2)", groupKey(m.group), memberKey); err != nil {
				s.c.mu.Lock()
				s.c.left = append(s.c.left, left[i:]...)
				s.c.mu.Unlock()
				return false, err
			}
		}
		close(m.gone)
	}
	return len(left) > 0, nil
}

func (s *laneSession) joinNew(ctx context.Context) (bool, error) {
	joined := false
	for _, m := range s.present() {
		if m.joined {
			continue
		}
		if _, err := s.conn.Exec(ctx, "SELECT pg_advisory_lock_shared($1, $2)", groupKey(m.group), memberKey); err != nil {
			return false, err
		}
		s.c.mu.Lock()
		m.joined = true
		s.c.mu.Unlock()
		joined = true
	}
	return joined, nil
}

// countSessions notes whether this process is alone, so that it can save
// notifications nobody would hear.
func (s *laneSession) countSessions(locks []lock) {
	others := false
	for _, l := range locks {
		others = others || (l.group == sessionsKey && l.object == memberKey && !l.mine)
	}
	s.c.mu.Lock()
	s.c.alone, s.c.up = !others, true
	s.c.mu.Unlock()
}

// share takes free lanes up to the fair share of m and asks its holder to
// finish with those above it. It reports whether lanes were unlocked.
func (s *laneSession) share(ctx context.Context, m *membership, locks []lock) (bool, error) {
	key := groupKey(m.group)
	members, held := 0, map[int16]bool{}
	for _, l := range locks {
		switch {
		case l.group != key:
		case l.object == memberKey:
			members++
		default:
			held[int16(l.object)] = true
		}
	}
	fair := (Lanes + members - 1) / max(members, 1)

	s.c.mu.Lock()
	released := m.released
	m.released = nil
	for _, lane := range released {
		delete(m.owned, lane)
		delete(m.revoking, lane)
	}
	keeping := len(m.owned) - len(m.revoking)
	var surplus []int16
	for lane := range m.owned {
		if keeping > fair && !m.revoking[lane] {
			surplus = append(surplus, lane)
			m.revoking[lane] = true
			keeping--
		}
	}
	s.c.mu.Unlock()

	if err := s.unlock(ctx, m.group, released); err != nil {
		return false, err
	}
	if len(surplus) > 0 {
		m.holder.revoke(surplus, func() { s.c.release(m, surplus) })
	}
	var free []int16
	for lane := int16(0); lane < Lanes && keeping+len(free) < fair; lane++ {
		if !held[lane] {
			free = append(free, lane)
		}
	}
	if len(free) == 0 {
		return len(released) > 0, nil
	}
	won, err := s.tryLock(ctx, m.group, free)
	if err != nil {
		return false, err
	}
	s.c.mu.Lock()
	for _, lane := range won {
		m.owned[lane] = true
	}
	s.c.mu.Unlock()
	if len(won) > 0 {
		m.holder.assign(won)
	}
	return len(released) > 0, nil
}

// release records that the holder is done with lanes. Lanes of a session that
// was lost meanwhile are no longer revoking and are left alone.
func (c *Claims) release(m *membership, lanes []int16) {
	c.mu.Lock()
	for _, lane := range lanes {
		if m.revoking[lane] {
			m.released = append(m.released, lane)
		}
	}
	c.mu.Unlock()
	c.poke()
}

func (s *laneSession) tryLock(ctx context.Context, group string, lanes []int16) ([]int16, error) {
	rows, err := s.conn.Query(ctx,
		"SELECT l FROM unnest($2::int2[]) l WHERE pg_try_advisory_lock($1, l::int)", groupKey(group), lanes)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int16])
}

func (s *laneSession) unlock(ctx context.Context, group string, lanes []int16) error {
	if len(lanes) == 0 {
		return nil
	}
	var all bool
	err := s.conn.QueryRow(ctx,
		"SELECT bool_and(pg_advisory_unlock($1, l::int)) FROM unnest($2::int2[]) l", groupKey(group), lanes).Scan(&all)
	if err == nil && !all {
		return errSessionGone
	}
	return err
}
