package postgres_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/platform/postgres"
	"km0/platform/testbed"
)

func TestMain(m *testing.M) {
	migrateAsChild()
	testbed.Main(m)
}

func open(t testing.TB, dsn string, opts postgres.PoolOptions) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.Open(context.Background(), dsn, opts)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func exec(t testing.TB, pool *pgxpool.Pool, statement string, args ...any) {
	t.Helper()
	_, err := pool.Exec(context.Background(), statement, args...)
	require.NoError(t, err)
}

func value[T any](t testing.TB, pool *pgxpool.Pool, query string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, pool.QueryRow(context.Background(), query, args...).Scan(&v))
	return v
}
