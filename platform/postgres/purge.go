package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// purgePause leaves the disk and the vacuum to others between two batches.
const purgePause = 50 * time.Millisecond

// Purge runs a statement that removes at most $1 rows, each time in a
// transaction of its own, until a run removes fewer than batch; args are $2
// and on. It returns how many rows it removed, also when it fails or ctx ends
// half way; what is removed stays removed. Several processes may purge the
// same table at once if the statement picks its rows with FOR UPDATE SKIP
// LOCKED:
//
//	DELETE FROM outbox WHERE id IN (
//	    SELECT id FROM outbox WHERE publicado_en < $2
//	    ORDER BY publicado_en LIMIT $1 FOR UPDATE SKIP LOCKED)
func Purge(ctx context.Context, pool *pgxpool.Pool, statement string, batch int, args ...any) (int64, error) {
	if batch < 1 {
		return 0, fmt.Errorf("purge: batch of %d rows, want at least 1", batch)
	}
	args = append([]any{batch}, args...)
	pause := time.NewTimer(0)
	defer pause.Stop()
	var removed int64
	for {
		select {
		case <-ctx.Done():
			return removed, ctx.Err()
		case <-pause.C:
		}
		tag, err := pool.Exec(ctx, statement, args...)
		if err != nil {
			return removed, fmt.Errorf("purge after %d rows: %w", removed, err)
		}
		removed += tag.RowsAffected()
		if tag.RowsAffected() < int64(batch) {
			return removed, nil
		}
		pause.Reset(purgePause)
	}
}
