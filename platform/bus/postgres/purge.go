package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	purgePage  = 1000
	purgePause = 50 * time.Millisecond // leaves the disk and the vacuum to others
)

// purgeQuery looks at one page of the log, by its primary key, and removes what
// is old and acknowledged by everybody. It tells where the page ended, whether
// that was the end of what is old, and how many it removed.
const purgeQuery = `
WITH pagina AS (
	SELECT posicion, topico, publicado_en < now() - $3::interval AS vieja
	FROM mensajes WHERE posicion > $1 ORDER BY posicion LIMIT $2),
borrados AS (
	DELETE FROM mensajes WHERE posicion = ANY (ARRAY (
		SELECT p.posicion FROM pagina p
		WHERE p.vieja AND NOT EXISTS (
			SELECT FROM suscripciones s JOIN entregas e ON e.consumidor = s.consumidor AND e.posicion = p.posicion
			WHERE s.topico = p.topico
			OFFSET 0)))
	RETURNING 1)
SELECT coalesce(max(posicion), 0), count(*) < $2 OR NOT bool_and(vieja), (SELECT count(*) FROM borrados)
FROM pagina`

// Purge removes messages published longer ago than age, by the database's
// clock, that no consumer still has to acknowledge, in small batches. It
// returns how many, also when it fails or ctx ends half way; what is removed
// stays removed. Several processes may purge at once.
func (d *Driver) Purge(ctx context.Context, age time.Duration) (int64, error) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	var removed, after int64
	for {
		select {
		case <-ctx.Done():
			return removed, ctx.Err()
		case <-pause.C:
		}
		last, end, n, err := d.purge(ctx, after, age)
		removed += n
		if err != nil {
			return removed, fmt.Errorf("purge the log of the bus after %d messages: %w", removed, err)
		}
		if end {
			return removed, nil
		}
		after = last
		pause.Reset(purgePause)
	}
}

// purge does one page, in one implicit transaction. The lock is a statement of
// its own: the snapshot must be taken after it, to see what a back-fill has put
// into entregas meanwhile.
func (d *Driver) purge(ctx context.Context, after int64, age time.Duration) (last int64, end bool, n int64, err error) {
	b := &pgx.Batch{}
	b.Queue(`SELECT pg_advisory_xact_lock($1, 0)`, purgeLock)
	b.Queue(purgeQuery, after, purgePage, age)
	results := d.cfg.Pool.SendBatch(ctx, b)
	if _, err = results.Exec(); err == nil {
		err = results.QueryRow().Scan(&last, &end, &n)
	}
	if err = errors.Join(err, results.Close()); err != nil {
		return 0, false, 0, err
	}
	return last, end, n, nil
}
