package keyed

import (
	"context"
	"time"
)

// settleLoop records acknowledged rows. What is acknowledged while one Settle
// runs shares the next.
func (r *reader) settleLoop() {
	defer close(r.settled)
	last := false
	for {
		batch := r.takeAcked()
		if len(batch) > 0 {
			if !r.settle(batch) {
				return
			}
			continue
		}
		if last {
			return
		}
		select {
		case <-r.ackSignal:
			r.gather()
		case <-r.noMore:
			last = true
		}
	}
}

// gather waits a moment for more rows to share the statement: nobody waits for
// a row to be settled, its key goes on at once.
func (r *reader) gather() {
	timer := time.NewTimer(settleLinger)
	defer timer.Stop()
	for {
		r.mu.Lock()
		enough := len(r.acked) >= settleEnough
		r.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-r.ackSignal:
		case <-timer.C:
			return
		case <-r.intake:
			return
		}
	}
}

func (r *reader) takeAcked() []Row {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(len(r.acked), settleMost)
	batch := r.acked[:n:n]
	r.acked = r.acked[n:]
	return batch
}

// settle tries until it succeeds, or until the reader is closed and out of
// patience: then the rows are handed out again by somebody.
func (r *reader) settle(batch []Row) bool {
	positions := make([]int64, len(batch))
	for i, row := range batch {
		positions[i] = row.Position
	}
	wait := pauseMin
	for healthy := true; ; {
		ctx, cancel := context.WithTimeout(r.patience, fetchTimeout)
		err := r.Table.Settle(ctx, positions)
		cancel()
		if err == nil {
			r.markSettled(batch)
			return true
		}
		if healthy {
			r.Logger.Warn("acknowledged rows cannot be settled, trying again", "rows", len(batch), "error", err)
		}
		healthy = false
		select {
		case <-time.After(wait):
		case <-r.patience.Done():
			return false
		}
		wait = min(2*wait, pauseMax)
	}
}

func (r *reader) markSettled(batch []Row) {
	var released []func()
	r.mu.Lock()
	for _, row := range batch {
		r.done = append(r.done, row.Position)
		released = append(released, r.idle(row.Lane)...)
	}
	r.settling -= len(batch)
	r.mu.Unlock()
	call(released)
	poke(r.settles)
	poke(r.kick)
}
