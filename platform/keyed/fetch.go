package keyed

import (
	"context"
	"maps"
	"slices"
	"time"
)

// plan decides where the next fetch starts.
type plan struct {
	woken     bool
	more      bool  // the last fetch was full: go on at cursor
	cursor    int64 // highest position admitted
	resume    int64 // a rescan must start here or before
	rescans   bool
	lastFetch time.Time
	lastSweep time.Time
	samples   []sample // cursor over the last moments
}

type sample struct {
	at     time.Time
	cursor int64
}

func (p *plan) rescan(from int64) {
	if !p.rescans || from < p.resume {
		p.resume = from
	}
	p.rescans = true
}

// back is the cursor of a horizon ago: rows that were given their position
// before but committed only now lie above it, later ones are left to the sweep.
func (p *plan) back(now time.Time) int64 {
	for len(p.samples) > 1 && now.Sub(p.samples[1].at) > horizon {
		p.samples = p.samples[1:]
	}
	if len(p.samples) == 0 || now.Sub(p.samples[0].at) <= horizon {
		return 0
	}
	return p.samples[0].cursor
}

func (p *plan) note(now time.Time) {
	if n := len(p.samples); n == 0 || now.Sub(p.samples[n-1].at) > horizon/10 {
		p.samples = append(p.samples, sample{now, p.cursor})
	}
}

// fetchLoop looks for rows when there is a reason to.
func (r *reader) fetchLoop() {
	defer close(r.fetched)
	healthy := true
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		q, epoch, wait := r.nextFetch()
		if wait > 0 {
			timer.Reset(wait)
			select {
			case <-r.kick:
			case <-timer.C:
			case <-r.intake:
				return
			}
			continue
		}
		rows, err := r.fetch(q)
		if err == nil {
			if !healthy {
				r.Logger.Info("table readable again")
			}
			healthy = true
			r.admit(q, epoch, rows)
			continue
		}
		if healthy && r.fetching.Err() == nil {
			r.Logger.Warn("table not readable, trying again", "error", err)
		}
		healthy = false
		timer.Reset(r.Poll)
		select {
		case <-timer.C:
		case <-r.intake:
			return
		}
	}
}

func (r *reader) fetch(q Query) ([]Row, error) {
	ctx, cancel := context.WithTimeout(r.fetching, fetchTimeout)
	defer cancel()
	return r.Table.Fetch(ctx, q)
}

// nextFetch returns the query to run, or how long to wait for a reason.
func (r *reader) nextFetch() (Query, int, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	lanes, all := r.ownedLanes()
	buffer := buffered(r.Config)
	inMemory := r.forgetSettled()
	paused, soonest := r.endPauses(now)
	switch {
	case len(lanes) == 0:
		return Query{}, 0, time.Hour // assign kicks
	case inMemory > buffer/2:
		return Query{}, 0, time.Hour // settleLoop kicks
	case paused > max(r.Concurrency, 16):
		return Query{}, 0, soonest
	}
	p := &r.plan
	q := Query{Limit: buffer, Exclude: []string{}, Skip: []int64{}}
	sweep := now.Sub(p.lastSweep) >= sweepEvery
	switch {
	case sweep:
		p.lastSweep = now
		p.rescans = false
	case p.rescans:
		q.After = p.resume
		p.rescans = false
	case p.more:
		q.After = p.cursor
	case p.woken || now.Sub(p.lastFetch) >= r.Poll:
		if gap := fetchGap - now.Sub(p.lastFetch); gap > 0 {
			return Query{}, 0, gap
		}
		p.woken = false
		q.After = p.back(now)
	default:
		wait := min(r.Poll-now.Sub(p.lastFetch), sweepEvery-now.Sub(p.lastSweep))
		if paused > 0 {
			wait = min(wait, soonest)
		}
		return Query{}, 0, max(wait, time.Millisecond)
	}
	p.lastFetch = now
	if q.After < p.cursor {
		q.Skip = slices.AppendSeq(make([]int64, 0, inMemory), maps.Keys(r.known))
	}
	q.Exclude = r.excluded(q.After, now, q.Exclude)
	if !all {
		q.Lanes = lanes
	}
	return q, r.epoch, 0
}

// forgetSettled drops rows that were settled before now: a fetch that starts
// now cannot return them. It returns how many are left.
func (r *reader) forgetSettled() int {
	for _, position := range r.done {
		delete(r.known, position)
	}
	r.done = r.done[:0]
	return len(r.known)
}

// endPauses asks for a rescan of keys whose pause is over. It returns how many
// keys are still paused and when the next one is due.
func (r *reader) endPauses(now time.Time) (paused int, soonest time.Duration) {
	for _, h := range r.held {
		switch left := h.until.Sub(now); {
		case h.until.IsZero():
		case left > 0:
			if paused == 0 || left < soonest {
				soonest = left
			}
			paused++
		case h.resume >= 0:
			r.plan.rescan(h.resume)
		}
	}
	return paused, soonest
}

// excluded ends the holdings that a fetch from after covers, and returns the
// keys that stay out.
func (r *reader) excluded(after int64, now time.Time, exclude []string) []string {
	for key, h := range r.held {
		covered := after <= h.resume || h.resume < 0
		switch {
		case h.until.IsZero() && covered && len(r.queues[key]) <= perKey/2:
			delete(r.held, key)
		case !h.until.IsZero() && covered && !now.Before(h.until):
			if now.Sub(h.until) > time.Minute {
				delete(r.held, key) // somebody else settled its row
				continue
			}
			h.resume = -1 // admitted; failures are remembered until it succeeds
			r.held[key] = h
		default:
			exclude = append(exclude, key)
		}
	}
	return exclude
}

// admit puts fetched rows behind their keys.
func (r *reader) admit(q Query, epoch int, rows []Row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if epoch != r.epoch { // what it saw is no longer so
		r.plan.rescan(q.After)
		return
	}
	now := time.Now()
	for _, row := range rows {
		if _, known := r.known[row.Position]; known {
			continue
		}
		if h, ok := r.held[row.Key]; ok && h.resume >= 0 {
			continue // held since the fetch began
		}
		queue, atWork := r.queues[row.Key]
		if len(queue) >= perKey {
			h := r.held[row.Key]
			h.until, h.resume = time.Time{}, queue[len(queue)-1].Position
			r.held[row.Key] = h
			continue
		}
		if !atWork && len(r.ready) == cap(r.ready) { // full of keys of lost lanes
			r.plan.rescan(row.Position - 1)
			break
		}
		r.known[row.Position] = struct{}{}
		r.queues[row.Key] = append(queue, row)
		if !atWork {
			r.ready <- row.Key
		}
	}
	r.plan.more = len(rows) >= q.Limit
	if n := len(rows); n > 0 && rows[n-1].Position > r.plan.cursor {
		r.plan.cursor = rows[n-1].Position
	}
	r.plan.note(now)
}
