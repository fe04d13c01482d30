package postgres_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/platform/postgres"
	"km0/platform/testbed"
)

func TestOpenNamesHostAndDatabaseAndNeverThePassword(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closed.Close())

	_, err = postgres.Open(context.Background(), "postgres://ana:s3creto@"+closed.Addr().String()+"/km0_pedidos", postgres.PoolOptions{})
	require.ErrorContains(t, err, `database "km0_pedidos" at `+closed.Addr().String())
	require.NotContains(t, err.Error(), "s3creto")
	require.NotContains(t, err.Error(), "\n")
	require.True(t, postgres.Unavailable(err))
}

func TestOpenRefusesABrokenDSNWithoutRepeatingIt(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://ana:s3cre/to@servidor:5432/km0",
		"postgres://ana:s3cre%to@servidor:5432/km0",
		"host=servidor password=s3cre to dbname=km0",
		"host=servidor password='s3cre to dbname=km0",
		"s3creto",
		"postgres://ana:s3creto@servidor/km0?sslmode=quiza",
		"postgres://ana:s3creto@servidor/km0?pool_max_conns=muchas",
	} {
		_, err := postgres.Open(context.Background(), dsn, postgres.PoolOptions{})
		require.ErrorContains(t, err, "database DSN refused", dsn)
		require.NotContains(t, err.Error(), "s3cre", dsn)
		require.NotContains(t, err.Error(), "to@", dsn)
		require.False(t, postgres.Unavailable(err), dsn)
	}
	_, err := postgres.Open(context.Background(), "postgres://ana@servidor/km0?sslmode=quiza", postgres.PoolOptions{})
	require.ErrorContains(t, err, "sslmode is invalid")
}

func TestOpenSaysThatTheDatabaseIsMissing(t *testing.T) {
	t.Parallel()
	_, err := postgres.Open(context.Background(), testbed.Postgres(t).DSN("km0_nada"), postgres.PoolOptions{})
	require.ErrorContains(t, err, `database "km0_nada" does not exist`)
}

func TestPoolLimitsWhatAnAbandonedSessionCanHold(t *testing.T) {
	t.Parallel()
	dsn := testbed.Postgres(t).Database(t)
	setting := func(pool *pgxpool.Pool, name string) string {
		return value[string](t, pool, `SELECT current_setting($1)`, name)
	}

	byDefault := open(t, dsn, postgres.PoolOptions{})
	require.Equal(t, "1min", setting(byDefault, "idle_in_transaction_session_timeout"))
	require.Equal(t, "30s", setting(byDefault, "statement_timeout"))
	require.Equal(t, "km0", setting(byDefault, "application_name"))
	require.EqualValues(t, 10, byDefault.Config().MaxConns)

	chosen := open(t, dsn, postgres.PoolOptions{MaxConns: 3, ApplicationName: "pedidos", StatementTimeout: -1})
	require.Equal(t, "0", setting(chosen, "statement_timeout"))
	require.Equal(t, "pedidos", setting(chosen, "application_name"))
	require.EqualValues(t, 3, chosen.Config().MaxConns)

	inDSN := open(t, testbed.With(testbed.With(dsn, "statement_timeout", "7000"), "pool_max_conns", "2"), postgres.PoolOptions{MaxConns: 3})
	require.Equal(t, "7s", setting(inDSN, "statement_timeout"))
	require.EqualValues(t, 2, inDSN.Config().MaxConns)
}

type querier interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// The old instance keeps running while the new one migrates: every connection
// has the statement prepared, but only one attempt may notice.
func TestSchemaChangeUnderARunningPoolCostsOneAttempt(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	attempts := map[string]func(db querier) error{
		"query": func(db querier) error {
			var id int64
			return db.QueryRow(ctx, `SELECT id FROM granja WHERE id = $1`, 1).Scan(&id)
		},
		"transaction": func(db querier) error {
			return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
				var id int64
				return tx.QueryRow(ctx, `SELECT id FROM granja WHERE id = $1 FOR UPDATE`, 1).Scan(&id)
			})
		},
		"batch": func(db querier) error {
			var batch pgx.Batch
			batch.Queue(`UPDATE granja SET nombre = $2 WHERE id = $1 RETURNING id`, 1, "El Soto")
			batch.Queue(`SELECT nombre FROM granja WHERE id = $1`, 1)
			return db.SendBatch(ctx, &batch).Close()
		},
	}
	for name, attempt := range attempts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := open(t, testbed.Postgres(t).Database(t), postgres.PoolOptions{MaxConns: 8})
			require.NoError(t, postgres.Migrate(ctx, pool, "s", set("0001_granja.sql", granja)))
			require.Empty(t, onEachConnection(t, pool, attempt))

			exec(t, pool, `ALTER TABLE granja ALTER COLUMN id TYPE BIGINT`)
			exec(t, pool, `ALTER TABLE granja ADD COLUMN zona TEXT`)
			failures := onEachConnection(t, pool, attempt)
			require.Len(t, failures, 1)
			require.True(t, postgres.Transient(failures[0]), "%v", failures[0])
			require.Empty(t, onEachConnection(t, pool, attempt))
		})
	}
}

// onEachConnection makes an attempt on every connection of a pool.
func onEachConnection(t *testing.T, pool *pgxpool.Pool, attempt func(querier) error) (failures []error) {
	for range pool.Config().MaxConns {
		conn, err := pool.Acquire(context.Background())
		require.NoError(t, err)
		defer conn.Release()
		if err := attempt(conn); err != nil {
			failures = append(failures, err)
		}
	}
	return failures
}

func TestPoolSurvivesARestartOfTheServer(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := testbed.PrivatePostgres(t)
	pool := open(t, server.Database(t), postgres.PoolOptions{MaxConns: 4})
	require.NoError(t, postgres.Migrate(ctx, pool, "s", set("0001_granja.sql", granja)))

	for _, mode := range []testbed.StopMode{testbed.Fast, testbed.Immediate, testbed.Kill} {
		tx, err := pool.Begin(ctx)
		require.NoError(t, err)
		server.Stop(t, mode)

		_, err = tx.Exec(ctx, `INSERT INTO granja VALUES (99, 'perdida')`)
		require.Error(t, err)
		require.True(t, postgres.Unavailable(err), "under way: %v", err)
		_ = tx.Rollback(ctx)
		_, err = pool.Exec(ctx, `SELECT 1`)
		require.True(t, postgres.Unavailable(err), "while down: %v", err)

		server.Start(t)
		testbed.Eventually(t, 10*time.Second, func() bool {
			_, err := pool.Exec(ctx, `SELECT 1`)
			return err == nil
		}, "the pool does not come back")
		require.Equal(t, 1, value[int](t, pool, `SELECT count(*) FROM granja`))
	}
}
