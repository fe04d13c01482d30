// Package keyed hands out the pending rows of a table as Watermill messages:
// one in flight per key, in the order of their position, many keys at once,
// shared between processes so that no two of them work on the same key.
//
// The outbox and the postgres bus are both read by it. Keys are spread over
// Lanes lanes; a process owns lanes by session advisory locks (Claims), so a
// killed process gives its lanes back when its session ends, without leases,
// heartbeats or clocks. Nothing is locked and no transaction is open while a
// message is handled.
//
// Killed after a message was acknowledged and before its row was settled, the
// message is handed out again with the same id. Two processes that both
// believe to own a lane (a session lost unnoticed) can hand out a message
// twice, never in another order: each starts from the lowest unsettled row of
// a key and goes on one by one.
package keyed

import (
	"context"
	"hash/fnv"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Lanes is the number of lanes keys are spread over, and so the most processes
// that can share one group. It is part of the stored data: never change it.
const Lanes = 32

// Lane is the lane of a key.
func Lane(key string) int16 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return int16(h.Sum32() % Lanes)
}

// Row is a pending row.
type Row struct {
	Position int64  // order within a key, unique in the table
	Lane     int16  // Lane(Key) as stored
	Key      string // at most one row of a key is in flight
	Message  *message.Message
}

// Query says which rows Fetch wants.
type Query struct {
	After   int64    // only positions above
	Lanes   []int16  // only these lanes; nil means all
	Exclude []string // not these keys; never nil
	Skip    []int64  // not these rows: they are in hand already; never nil
	Limit   int      // at most so many
}

// Table is what the reader needs of a table. Implementations are safe for
// concurrent use.
type Table interface {
	// Fetch returns pending rows by ascending position. The rows of a key must
	// come without holes: if one is held back, so are those after it.
	Fetch(ctx context.Context, q Query) ([]Row, error)
	// Settle records that the rows are done; they are never fetched again.
	Settle(ctx context.Context, positions []int64) error
	// SetAside records that a row can never be delivered and why. Neither it
	// nor the later rows of its key are fetched until somebody repairs it.
	SetAside(ctx context.Context, position int64, reason string) error
}

type refusalKey struct{}

type refusal struct{ err error }

// Refuse marks the message that travels in ctx as undeliverable for good: when
// it is nacked, its row is set aside instead of tried again. The context must
// descend from the message's own.
func Refuse(ctx context.Context, err error) {
	if r, ok := ctx.Value(refusalKey{}).(*refusal); ok {
		r.err = err
	}
}
