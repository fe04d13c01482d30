package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"km0/platform/postgres"
	"km0/platform/testbed"
)

func TestFailuresAreToldApart(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset by peer")}
	tests := []struct {
		err                    error
		unavailable, transient bool
	}{
		{nil, false, false},
		{errors.New("datos"), false, false},
		{context.Canceled, false, false},
		{context.DeadlineExceeded, false, false},
		{fmt.Errorf("write failed: %w", refused), true, false},
		{&url.Error{Op: "Post", URL: "https://pasarela/cobros", Err: refused}, false, false},
		{io.ErrUnexpectedEOF, true, false},
		{pgconn.ErrConnClosed, true, false},
		{pgx.ErrNoRows, false, false},
		{sqlState("08006"), true, false},
		{sqlState("25006"), true, false},
		{sqlState("53100"), true, false},
		{sqlState("53300"), true, false},
		{sqlState("57P01"), true, false},
		{sqlState("57P02"), true, false},
		{sqlState("57P03"), true, false},
		{sqlState("58030"), true, false},
		{sqlState("25P03"), false, true},
		{sqlState("40001"), false, true},
		{sqlState("40P01"), false, true},
		{sqlState("55P03"), false, true},
		{sqlState("57014"), false, true},
		{sqlState("0A000"), false, false},
		{sqlState("22001"), false, false},
		{sqlState("23505"), false, false},
		{sqlState("23514"), false, false},
		{sqlState("42P01"), false, false},
		{&pgconn.PgError{}, false, false},
	}
	for _, test := range tests {
		wrapped := test.err
		if wrapped != nil {
			wrapped = fmt.Errorf("save pedido: %w", wrapped)
		}
		require.Equal(t, test.unavailable, postgres.Unavailable(wrapped), "Unavailable(%v)", test.err)
		require.Equal(t, test.transient, postgres.Transient(wrapped), "Transient(%v)", test.err)
	}
}

func sqlState(code string) error {
	return &pgconn.PgError{Severity: "ERROR", Code: code, Message: "message"}
}

func TestCollisionsOfARealServerAreTransient(t *testing.T) {
	t.Parallel()
	ctx, pool := context.Background(), emptyDatabase(t)
	require.NoError(t, postgres.Migrate(ctx, pool, "s", set("0001_granja.sql", granja)))

	t.Run("statement time-out", func(t *testing.T) {
		short := open(t, pool.Config().ConnString(), postgres.PoolOptions{StatementTimeout: 20 * time.Millisecond})
		_, err := short.Exec(ctx, `SELECT pg_sleep(10)`)
		require.True(t, postgres.Transient(err), "%v", err)
		require.False(t, postgres.Unavailable(err))
	})
	t.Run("serialisation", func(t *testing.T) {
		first, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		require.NoError(t, err)
		defer func() { _ = first.Rollback(ctx) }()
		_, err = first.Exec(ctx, `SELECT * FROM granja`)
		require.NoError(t, err)
		exec(t, pool, `UPDATE granja SET nombre = 'El Soto'`)
		_, err = first.Exec(ctx, `UPDATE granja SET nombre = 'La Vega'`)
		require.True(t, postgres.Transient(err), "%v", err)
	})
}

// A server that answers nothing, as behind a firewall that drops packets.
func TestASilentServerIsUnavailableWithinTheConnectTimeout(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()

	start := time.Now()
	_, err = postgres.Open(context.Background(), "postgres://ana@"+silent.Addr().String()+"/km0?connect_timeout=1&sslmode=disable", postgres.PoolOptions{})
	require.True(t, postgres.Unavailable(err), "%v", err)
	require.Less(t, time.Since(start), 4*time.Second)
}

func TestASessionEndedByTheServerIsUnavailableAndReplaced(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dsn := testbed.Postgres(t).Database(t)
	pool := open(t, dsn, postgres.PoolOptions{MaxConns: 1})
	other := open(t, dsn, postgres.PoolOptions{MaxConns: 1})
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(ctx) }()
	var pid int
	require.NoError(t, tx.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid))
	exec(t, other, `SELECT pg_terminate_backend($1, 5000)`, pid)

	_, err = tx.Exec(ctx, `SELECT 1`)
	require.True(t, postgres.Unavailable(err), "%v", err)
	_ = tx.Rollback(ctx)
	require.NotEqual(t, pid, value[int](t, pool, `SELECT pg_backend_pid()`))
}
