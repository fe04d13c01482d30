package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	purgeBatch = 1000
	purgePause = 50 * time.Millisecond // leaves the disk and the vacuum to others
)

// purgeQuery walks mensajes_edad from its oldest end, stops at the first
// message that is too young, and looks each up in the primary key of entregas.
// By ctid: a join could be planned as a scan of the whole table.
const purgeQuery = `
DELETE FROM mensajes WHERE ctid = ANY (ARRAY (
	SELECT m.ctid FROM mensajes m
	WHERE m.publicado_en < now() - $2::interval
	  AND NOT EXISTS (SELECT FROM suscripciones s JOIN entregas e ON e.consumidor = s.consumidor AND e.posicion = m.posicion
	                  WHERE s.topico = m.topico)
	ORDER BY m.publicado_en LIMIT $1))`

// Purge removes messages published longer ago than age, by the database's
// clock, that no consumer still has to acknowledge, in small batches. It
// returns how many, also when it fails or ctx ends half way; what is removed
// stays removed. Several processes may purge at once.
func (d *Driver) Purge(ctx context.Context, age time.Duration) (int64, error) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	var removed int64
	for {
		select {
		case <-ctx.Done():
			return removed, ctx.Err()
		case <-pause.C:
		}
		n, err := d.purge(ctx, age)
		removed += n
		if err != nil {
			return removed, fmt.Errorf("purge the log of the bus after %d messages: %w", removed, err)
		}
		if n < purgeBatch {
			return removed, nil
		}
		pause.Reset(purgePause)
	}
}

// purge removes one batch, in one implicit transaction. The lock is a
// statement of its own: the DELETE's snapshot must be taken after it, to see
// what a back-fill has put into entregas meanwhile.
func (d *Driver) purge(ctx context.Context, age time.Duration) (n int64, err error) {
	b := &pgx.Batch{}
	b.Queue(`SELECT pg_advisory_xact_lock($1, 0)`, purgeLock)
	b.Queue(purgeQuery, purgeBatch, age)
	results := d.cfg.Pool.SendBatch(ctx, b)
	if _, err = results.Exec(); err == nil {
		tag, failed := results.Exec()
		n, err = tag.RowsAffected(), failed
	}
	if closed := results.Close(); err == nil {
		err = closed
	}
	return n, err
}
