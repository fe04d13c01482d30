package keyed

import "sync/atomic"

// ownedLanes lists the lanes of this process and says whether it has them all.
func (r *reader) ownedLanes() (owned []int16, all bool) {
	for lane := range r.lanes {
		if r.lanes[lane].owned {
			owned = append(owned, int16(lane))
		}
	}
	return owned, len(owned) == Lanes
}

// assign implements holder: the table is read from its start, since rows of
// the new lanes may lie anywhere.
func (r *reader) assign(lanes []int16) {
	r.mu.Lock()
	for _, lane := range lanes {
		r.lanes[lane].owned = true
	}
	r.epoch++
	r.plan = plan{}
	r.mu.Unlock()
	r.Logger.Debug("lanes assigned", "lanes", len(lanes))
	poke(r.kick)
}

// revoke implements holder.
func (r *reader) revoke(lanes []int16, released func()) {
	var left atomic.Int32
	left.Store(int32(len(lanes)))
	one := func() {
		if left.Add(-1) == 0 {
			released()
		}
	}
	r.mu.Lock()
	r.giveUp(lanes)
	idle := 0
	for _, lane := range lanes {
		if r.lanes[lane].busy > 0 {
			r.lanes[lane].released = one
		} else {
			idle++
		}
	}
	r.mu.Unlock()
	r.Logger.Debug("lanes revoked", "lanes", len(lanes))
	for range idle {
		one()
	}
}

// lost implements holder: rows in flight go on, the inbox absorbs them should
// another process hand them out too.
func (r *reader) lost() {
	r.mu.Lock()
	defer r.mu.Unlock()
	owned, _ := r.ownedLanes()
	r.giveUp(owned)
}

// giveUp forgets the queued rows of lanes. Keys with a row in flight keep
// their (empty) queue, so that no second worker starts beside the first.
func (r *reader) giveUp(lanes []int16) {
	for _, lane := range lanes {
		r.lanes[lane].owned = false
	}
	r.epoch++
	for key, queue := range r.queues {
		if len(queue) > 0 && !r.lanes[queue[0].Lane].owned {
			for _, row := range queue {
				delete(r.known, row.Position)
			}
			r.queues[key] = nil
		}
	}
}
