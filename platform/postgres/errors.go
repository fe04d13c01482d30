package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"path"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
)

// NewerSchemaError reports a database that a newer binary has migrated. This
// binary does not know what changed, so it must not write there.
type NewerSchemaError struct {
	Database, Set string
	Found, Known  int64 // newest migration in the database, and of this binary
}

func (e *NewerSchemaError) Error() string {
	return fmt.Sprintf("database %q has migration %d of set %q, this binary knows up to %d: start the newer binary",
		e.Database, e.Found, e.Set, e.Known)
}

// MigrationError reports the migration file that failed. The database is as
// the file before it left it, apart from an invalid index where the file
// builds one outside a transaction.
type MigrationError struct {
	Database, Set, File string
	Err                 error // what PostgreSQL said
}

func newMigrationError(s *session, partial *goose.PartialError) *MigrationError {
	return &MigrationError{Database: s.database, Set: s.set, File: path.Base(partial.Failed.Source.Path), Err: partial.Err}
}

func (e *MigrationError) Error() string {
	return fmt.Sprintf("migration file %s failed: %v: %s", e.File, e.Err, e.advice())
}

func (e *MigrationError) Unwrap() error { return e.Err }

func (e *MigrationError) advice() string {
	switch code(e.Err) {
	case "55P03":
		return "another session keeps a table locked (see pg_locks and pg_stat_activity): end it and start again"
	case "40P01":
		return "it collided with another session: start again"
	case "42P07", "42710", "42701", "42723", "42P06":
		return "something else made an object of this name: drop or rename it and start again"
	case "42501":
		return "grant the database user the right to change the schema and start again"
	}
	return "remove the cause and start again"
}

// Unavailable tells whether the database is away or refuses all work for now:
// no connection, connection lost, shutting down, starting up, read only, out
// of disk, memory or connections. The statement may or may not have taken
// effect. Whoever gets it waits and tries again; it says nothing about the
// work that was being done.
//
// False for a context that ended and for the errors of HTTP clients (*url.Error),
// whose network is not the database's.
func Unavailable(err error) bool {
	var connect *pgconn.ConnectError
	var http *url.Error
	var network net.Error
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.As(err, &http):
		return false
	case errors.As(err, &connect):
		return true
	case code(err) != "":
		return refusesAllWork(code(err))
	case errors.Is(err, context.DeadlineExceeded): // which is a net.Error, too
		return false
	}
	return errors.As(err, &network) ||
		errors.Is(err, pgconn.ErrConnClosed) ||
		errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF)
}

func refusesAllWork(sqlState string) bool {
	switch sqlState[:2] {
	case "08", // connection exception
		"53", // insufficient resources
		"58": // system error: I/O on the server
		return true
	}
	return sqlState == "25006" || // read only: a standby, or a primary being demoted
		strings.HasPrefix(sqlState, "57P") // shutdown, crash, starting up, session ended
}

// Transient tells whether the database is well but this attempt collided with
// another session or with a schema change, so that the same transaction, run
// again from its start, should succeed: serialisation failure, deadlock, lock
// or statement time-out, transaction ended for idling, stale plan.
func Transient(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	switch pg.Code {
	case "40001", "40P01", "55P03", "57014", "25P03", "25P04":
		return true
	}
	return stalePlan(pg)
}

func code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && len(pg.Code) == 5 {
		return pg.Code
	}
	return ""
}
