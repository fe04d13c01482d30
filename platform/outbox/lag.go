package outbox

import (
	"context"
	"fmt"
	"time"

	"km0/platform/postgres"
)

// Lag is how far the relay is behind.
type Lag struct {
	Pending       int64   // rows not yet published, those set aside included
	OldestSeconds float64 // age of the oldest of them
	SetAside      int64   // rows the bus refused for good: somebody must look
}

const lagQuery = `
SELECT p.n + a.n, a.n, greatest(0, extract(epoch FROM clock_timestamp() - least(p.oldest, a.oldest)))::float8
FROM (SELECT count(*) n, min(creado_en) oldest FROM outbox WHERE publicado_en IS NULL AND apartado_en IS NULL) p,
     (SELECT count(*) n, min(creado_en) oldest FROM outbox WHERE publicado_en IS NULL AND apartado_en IS NOT NULL) a`

// Lag reads only pending rows, however many are published.
func (o *Outbox) Lag(ctx context.Context) (Lag, error) {
	var l Lag
	err := o.cfg.Pool.QueryRow(ctx, lagQuery).Scan(&l.Pending, &l.SetAside, &l.OldestSeconds)
	if err != nil {
		return Lag{}, fmt.Errorf("lag of the outbox of %s: %w", o.cfg.Origen, err)
	}
	return l, nil
}

// purgeQuery walks outbox_publicados from its oldest end and stops at the first
// row that is too young. By ctid, and not by id: a join could be planned as a
// scan of the whole table.
const purgeQuery = `
DELETE FROM outbox WHERE ctid = ANY (ARRAY (
	SELECT ctid FROM outbox
	WHERE publicado_en < now() - $2::interval
	ORDER BY publicado_en LIMIT $1 FOR UPDATE SKIP LOCKED))`

// Purge removes rows published longer ago than age, by the database's clock,
// in small batches. It returns how many, also when it fails half way. Several
// processes may purge at once.
func (o *Outbox) Purge(ctx context.Context, age time.Duration) (int64, error) {
	n, err := postgres.Purge(ctx, o.cfg.Pool, purgeQuery, 1000, age)
	if err != nil {
		return n, fmt.Errorf("purge the outbox of %s: %w", o.cfg.Origen, err)
	}
	return n, nil
}
