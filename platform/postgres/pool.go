package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	connectTimeout           = 5 * time.Second
	defaultStatementTimeout  = 30 * time.Second
	idleInTransactionTimeout = 60 * time.Second
)

// PoolOptions says how a pool uses its server. The zero value is usable.
// What the DSN sets itself (pool_max_conns, application_name,
// statement_timeout, connect_timeout, ...) wins over these options.
type PoolOptions struct {
	// MaxConns is the largest number of connections; 0 means 10. Acquiring
	// beyond it waits as long as the caller's context allows.
	MaxConns int32
	// ApplicationName shows in pg_stat_activity and in the error of whoever
	// waits for one of this pool's locks; empty means "km0".
	ApplicationName string
	// StatementTimeout ends a statement on the server, so that one whose
	// client is gone does not run for ever; 0 means 30 s, negative none.
	StatementTimeout time.Duration
}

// Open connects to the database of a DSN (URL or key=value form) and returns
// a pool that mends itself: a broken connection is replaced at its next use,
// a silent one is given up after about 15 s, an abandoned transaction ends on
// the server after 60 s, and a statement that a schema change invalidated
// fails once and never again (see keepPlansFresh).
//
// It fails when the DSN is not understood, or when the server does not let us
// in within 5 s (or ctx): the error names host and database and never holds the
// password; Unavailable tells whether waiting may help. The caller closes the
// pool. Safe for concurrent use.
func Open(ctx context.Context, dsn string, opts PoolOptions) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, dsnError(err)
	}
	applyOptions(cfg, dsn, opts)

	var current atomic.Pointer[pgxpool.Pool]
	keepPlansFresh(&cfg.ConnConfig.Config, &current)

	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open pool for %s: %w", describe(&cfg.ConnConfig.Config), err)
	}
	current.Store(pool)

	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, &connectError{where: describe(&cfg.ConnConfig.Config), err: err}
	}
	return pool, nil
}

// connectError says in one line what pgx says in several, once for each
// address and once more without TLS.
type connectError struct {
	where string
	err   error
}

func (e *connectError) Error() string {
	reason := e.err
	var connect *pgconn.ConnectError
	if errors.As(e.err, &connect) {
		reason = connect.Unwrap()
	}
	var lines []string
	for line := range strings.Lines(reason.Error()) {
		if line = strings.TrimSpace(line); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return "connect to " + e.where + ": " + strings.Join(lines, "; ")
}

func (e *connectError) Unwrap() error { return e.err }

func applyOptions(cfg *pgxpool.Config, dsn string, opts PoolOptions) {
	chosen := func(parameter string) bool { return strings.Contains(dsn, parameter) }
	conn := &cfg.ConnConfig.Config
	if !chosen("pool_max_conns") {
		cfg.MaxConns = 10
		if opts.MaxConns > 0 {
			cfg.MaxConns = opts.MaxConns
		}
	}
	if !chosen("pool_health_check_period") {
		cfg.HealthCheckPeriod = 10 * time.Second
	}
	if !chosen("pool_max_conn_idle_time") {
		cfg.MaxConnIdleTime = 5 * time.Minute
	}
	if !chosen("pool_max_conn_lifetime_jitter") {
		cfg.MaxConnLifetimeJitter = 5 * time.Minute // connections opened together do not end together
	}
	if !chosen("pool_ping_timeout") {
		cfg.PingTimeout = connectTimeout
	}
	if !chosen("connect_timeout") {
		conn.ConnectTimeout = connectTimeout
	}
	conn.DialFunc = dialer().DialContext

	name := opts.ApplicationName
	if name == "" {
		name = "km0"
	}
	setDefault(conn.RuntimeParams, "application_name", name)
	// Every statement here is short; a planner that overrates one would spend
	// more on compiling it than on running it.
	setDefault(conn.RuntimeParams, "jit", "off")
	setDefault(conn.RuntimeParams, "idle_in_transaction_session_timeout", milliseconds(idleInTransactionTimeout))
	switch {
	case opts.StatementTimeout == 0:
		setDefault(conn.RuntimeParams, "statement_timeout", milliseconds(defaultStatementTimeout))
	case opts.StatementTimeout > 0:
		setDefault(conn.RuntimeParams, "statement_timeout", milliseconds(opts.StatementTimeout))
	}
}

func setDefault(params map[string]string, name, value string) {
	if _, ok := params[name]; !ok {
		params[name] = value
	}
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// dialer makes a dead network show within about 15 s, on a connection that
// waits for an answer (keepalive) as on one whose request was never
// acknowledged (TCP_USER_TIMEOUT, where the system has it).
func dialer() *net.Dialer {
	return &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 2},
		Control:         limitUnacknowledged,
	}
}

// describe names the server and database of a connection, without secrets.
func describe(cfg *pgconn.Config) string {
	host := cfg.Host
	if !strings.HasPrefix(host, "/") {
		host = net.JoinHostPort(host, strconv.Itoa(int(cfg.Port)))
	}
	return fmt.Sprintf("database %q at %s as user %q", cfg.Database, host, cfg.User)
}

// dsnError reports why a DSN was refused without repeating any of it: a
// password with an unescaped character may end up in any part of a URL.
func dsnError(err error) error {
	var parse *pgconn.ParseConfigError
	var inURL *url.Error
	reason := "not a PostgreSQL URL"
	if errors.As(err, &parse) && !errors.As(err, &inURL) {
		if _, after, found := strings.Cut(err.Error(), "`: "); found {
			reason = after
		}
	}
	return fmt.Errorf("database DSN refused: %s (expected postgres://user:password@host:5432/database; "+
		"escape / ? # @ : %% in the password as %%2F %%3F %%23 %%40 %%3A %%25)", reason)
}
