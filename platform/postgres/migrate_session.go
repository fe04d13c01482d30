package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// migrationLock is one advisory lock for all sets of a database, because a
	// set may refer to the tables of another: "km0mig" in ASCII.
	migrationLock int64 = 0x6b6d306d6967

	lockPoll     = 100 * time.Millisecond
	lockPatience = 5 * time.Minute
)

// session is goose's session locker with our checks in it: whatever goose does
// after SessionLock happens under the lock, on the same connection, after the
// database was found fit for this binary. A lock on a connection of its own
// could be lost while goose goes on working.
type session struct {
	set, table, database string
	known                []file // by version
}

// SessionLock waits for the migration lock of the database, at most 5 minutes,
// then refuses a newer schema and clears half-built indexes.
func (s *session) SessionLock(ctx context.Context, conn *sql.Conn) error {
	if err := s.lock(ctx, conn); err != nil {
		return err
	}
	if err := s.prepare(ctx, conn); err != nil {
		return errors.Join(err, s.SessionUnlock(context.WithoutCancel(ctx), conn))
	}
	return nil
}

// lock polls instead of waiting inside pg_advisory_lock: a waiting statement
// holds a snapshot, and CREATE INDEX CONCURRENTLY in the session that holds the
// lock waits for that snapshot to end, which is a deadlock.
func (s *session) lock(ctx context.Context, conn *sql.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	poll := time.NewTicker(lockPoll)
	defer poll.Stop()
	for {
		var locked bool
		if err := conn.QueryRowContext(ctx, `SELECT pg_try_advisory_lock($1)`, migrationLock).Scan(&locked); err != nil {
			return fmt.Errorf("take the migration lock: %w", err)
		}
		if locked {
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("another process holds the migration lock of database %q (application_name %q in "+
				"pg_stat_activity): wait for it or end it, then start again: %w", s.database, migrationAppName, ctx.Err())
		}
	}
}

// SessionUnlock releases the lock. A connection that cannot do it any more is
// thrown away, and the lock ends with its session.
func (s *session) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if _, err := conn.ExecContext(ctx, `SELECT pg_advisory_unlock($1)`, migrationLock); err != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	return nil
}

func (s *session) prepare(ctx context.Context, conn *sql.Conn) error {
	applied, err := s.applied(ctx, conn)
	if err != nil {
		return fmt.Errorf("read version table %s: %w", s.table, err)
	}
	newest := s.known[len(s.known)-1].version
	for version := range applied {
		if version > newest {
			return &NewerSchemaError{Database: s.database, Set: s.set, Found: latest(applied), Known: newest}
		}
	}
	return s.dropHalfBuiltIndexes(ctx, conn, applied)
}

func latest(applied map[int64]bool) (version int64) {
	for v := range applied {
		version = max(version, v)
	}
	return version
}

// applied reads the version table; no table yet means that nothing is applied.
func (s *session) applied(ctx context.Context, conn *sql.Conn) (map[int64]bool, error) {
	var exists bool
	if err := conn.QueryRowContext(ctx, `SELECT to_regclass($1) IS NOT NULL`, s.table).Scan(&exists); err != nil || !exists {
		return nil, err
	}
	versions, err := column[int64](ctx, conn, `SELECT version_id FROM `+s.table+` WHERE is_applied`)
	if err != nil {
		return nil, err
	}
	applied := make(map[int64]bool, len(versions))
	for _, v := range versions {
		applied[v] = true
	}
	return applied, nil
}

// dropHalfBuiltIndexes removes invalid indexes that a pending file is about to
// build: CREATE INDEX CONCURRENTLY leaves one when it is broken off, and its
// repetition with IF NOT EXISTS would take the name for the work done.
func (s *session) dropHalfBuiltIndexes(ctx context.Context, conn *sql.Conn, applied map[int64]bool) error {
	invalid, err := column[string](ctx, conn, `
		SELECT c.relname
		FROM pg_index i
		JOIN pg_class c ON c.oid = i.indexrelid
		WHERE NOT i.indisvalid AND c.relnamespace = current_schema()::regnamespace`)
	if err != nil {
		return fmt.Errorf("look for half-built indexes: %w", err)
	}
	for _, index := range invalid {
		for _, f := range s.known {
			if applied[f.version] || !f.noTransaction || !strings.Contains(f.text, index) {
				continue
			}
			if _, err := conn.ExecContext(ctx, `DROP INDEX CONCURRENTLY IF EXISTS `+pgx.Identifier{index}.Sanitize()); err != nil {
				return fmt.Errorf("drop half-built index %s before %s builds it again: %w", index, f.name, err)
			}
			break
		}
	}
	return nil
}

// column reads the only column of a query.
func column[T any](ctx context.Context, conn *sql.Conn, query string) ([]T, error) {
	rows, err := conn.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var values []T
	for rows.Next() {
		var v T
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, rows.Err()
}
