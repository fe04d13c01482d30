package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"regexp"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

// migrationLockTimeout is how long one statement of a migration waits for a
// table lock. Longer would not help: everybody else queues behind it.
const migrationLockTimeout = "10s"

const migrationAppName = "km0 migrate"

var setName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,40}$`)

// Migrate brings the pool's database up to the newest file of a migration set.
//
// The set's name is that of its version table, goose_<set>, so that one
// database holds several sets; it must be lower case and fit an identifier.
// Files are goose SQL migrations at the root of files, numbered 0001_name.sql.
//
// It may be called by many processes at once: one works, the others wait and
// then find nothing to do. Each file runs in a transaction with its version
// record, so a kill or an error leaves the database as after the file before,
// and repeated starts change nothing until the cause is removed. A file marked
// NO TRANSACTION must hold one repeatable statement (see checkRepeatable); an
// index that a killed CREATE INDEX CONCURRENTLY left invalid is dropped and
// built again.
//
// A file whose number is lower than one already applied, merged late or lost
// from the version table, is applied, never skipped.
//
// Errors: *NewerSchemaError when the database is ahead of files; *MigrationError
// when a file fails, also because another session kept a table locked for 10 s
// (lock_timeout in the DSN changes that); otherwise the connection's own.
func Migrate(ctx context.Context, pool *pgxpool.Pool, set string, files fs.FS) error {
	if !setName.MatchString(set) {
		return fmt.Errorf("migration set %q: want lower-case letters, digits and _ (it names the table goose_%s)", set, set)
	}
	known, err := readFiles(files)
	if err != nil {
		return fmt.Errorf("migration set %q: %w", set, err)
	}
	db := openForMigration(pool)
	defer db.Close()

	session := &session{set: set, table: "goose_" + set, database: pool.Config().ConnConfig.Database, known: known}
	err = up(ctx, db, session, files)
	var newer *NewerSchemaError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &newer):
		return newer
	}
	return fmt.Errorf("migrate database %q to set %q: %w", session.database, set, err)
}

func up(ctx context.Context, db *sql.DB, s *session, files fs.FS) error {
	provider, err := goose.NewProvider(database.DialectPostgres, db, files,
		goose.WithTableName(s.table),
		goose.WithSessionLocker(s),
		goose.WithAllowOutofOrder(true),
		goose.WithDisableGlobalRegistry(true),
		goose.WithLogger(goose.NopLogger()),
	)
	if err != nil {
		return err
	}
	// Up alone would look at the version table, and create it, before it takes
	// the lock: several first starts at once would collide. Status locks first.
	if _, err := provider.Status(ctx); err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	var partial *goose.PartialError
	if errors.As(err, &partial) {
		return newMigrationError(s, partial)
	}
	return err
}

// openForMigration opens a connection of its own: a session lock must not ride
// on a pooled connection, nor must the time-outs of migrations stay on one, and
// a pool of one connection must do. A lock_timeout in the DSN wins over ours.
func openForMigration(pool *pgxpool.Pool) *sql.DB {
	cfg := pool.Config().ConnConfig
	cfg.RuntimeParams["application_name"] = migrationAppName
	cfg.RuntimeParams["statement_timeout"] = "0"
	setDefault(cfg.RuntimeParams, "lock_timeout", migrationLockTimeout)
	db := stdlib.OpenDB(*cfg, stdlib.OptionAfterConnect(endWithClient))
	db.SetMaxOpenConns(1)
	return db
}

// endWithClient makes the server end a statement whose client was killed.
// Otherwise the next start waits for the migration lock as long as it runs.
// Servers before 14 and on some systems lack it: then it is that wait.
func endWithClient(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `SET client_connection_check_interval = '1s'`)
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return nil
	}
	return err
}
