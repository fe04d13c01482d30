package postgres

import (
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// keepPlansFresh makes a pool survive a schema change under it.
//
// Statements stay prepared on each connection (pgx's default mode,
// cache_statement). After the type of a selected column changed, each of them
// fails once on each connection with "cached plan must not change result
// type": with ten connections that is ten failures of one statement, more than
// a consumer has attempts. So the first failure replaces every connection of
// the pool: the next attempt, on whatever connection, prepares anew.
//
// The alternative, cache_describe, keeps no plans on the server and would not
// fail here, but fails where a column was added to a SELECT *, and parses and
// plans at every execution: writing an order with its event took about a third
// longer. A DSN may still choose it (default_query_exec_mode=cache_describe),
// as a connection pooler between may require.
func keepPlansFresh(cfg *pgconn.Config, pool *atomic.Pointer[pgxpool.Pool]) {
	next := cfg.OnPgError
	cfg.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		if stalePlan(err) {
			if p := pool.Load(); p != nil {
				p.Reset()
			}
		}
		if next != nil {
			return next(conn, err)
		}
		return !strings.EqualFold(err.Severity, "FATAL")
	}
}

// stalePlan recognises PostgreSQL's refusal to run a prepared statement whose
// result would have other types than when it was prepared. The SQLSTATE 0A000
// is shared by many errors; the name of the server's function, unlike its
// message, is not translated.
func stalePlan(err *pgconn.PgError) bool {
	return err.Code == "0A000" && err.Routine == "RevalidateCachedQuery"
}
