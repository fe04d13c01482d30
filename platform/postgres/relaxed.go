package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Relaxed runs one statement in a transaction of its own, in one round trip,
// without waiting for the disk. It is for records of work done that may be
// lost if the server itself dies within a second, because the work would only
// be recognised as done: acknowledgements, marks. A killed client loses
// nothing.
func Relaxed(ctx context.Context, pool *pgxpool.Pool, statement string, args ...any) error {
	b := &pgx.Batch{}
	b.Queue(`SELECT set_config('synchronous_commit', 'off', true)`)
	b.Queue(statement, args...)
	return pool.SendBatch(ctx, b).Close()
}
