package postgres_test

import (
	"context"
	"fmt"
	"os"
	process "os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/platform/postgres"
	"km0/platform/testbed"
)

// lenta is half done when it sleeps, for as long as the table pausa says.
const lenta = "-- +goose Up\nALTER TABLE granja ADD COLUMN zona TEXT;\nINSERT INTO granja VALUES (2, 'El Soto');\n" +
	"SELECT pg_sleep(segundos) FROM pausa;\n"

var lentas = set("0001_granja.sql", granja, "0002_lenta.sql", lenta)

// migrateAsChild is what this test binary does instead of testing when it is
// started as the instance that gets killed.
func migrateAsChild() {
	dsn := os.Getenv("KM0_TEST_MIGRATE")
	if dsn == "" {
		return
	}
	pool, err := postgres.Open(context.Background(), dsn, postgres.PoolOptions{})
	if err == nil {
		err = postgres.Migrate(context.Background(), pool, "s", lentas)
	}
	fmt.Fprintln(os.Stderr, "child ended by itself:", err)
	os.Exit(1)
}

func validIndex(t testing.TB, pool *pgxpool.Pool) bool {
	t.Helper()
	return value[bool](t, pool, `SELECT coalesce(bool_and(indisvalid), false) FROM pg_index WHERE indexrelid = to_regclass('granja_nombre')`)
}

func TestMigrationThatFailsHalfWayLeavesNothingAndCompletesOnceTheCauseIsGone(t *testing.T) {
	t.Parallel()
	ctx, pool := context.Background(), emptyDatabase(t)
	exec(t, pool, `CREATE TABLE mercado (mio TEXT)`)
	files := set("0001_granja.sql", granja,
		"0002_dos.sql", "-- +goose Up\nINSERT INTO granja VALUES (2, 'El Soto');\nCREATE TABLE mercado (id INT);\n",
		"0003_cosecha.sql", cosecha)

	for range 3 {
		err := postgres.Migrate(ctx, pool, "s", files)
		var failed *postgres.MigrationError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, "0002_dos.sql", failed.File)
		require.ErrorContains(t, err, "drop or rename it and start again")
		require.Equal(t, 1, value[int](t, pool, `SELECT count(*) FROM granja`))
		require.Equal(t, []int64{1}, versions(t, pool, "s"))
	}
	exec(t, pool, `DROP TABLE mercado`)
	require.NoError(t, postgres.Migrate(ctx, pool, "s", files))
	require.Equal(t, 2, value[int](t, pool, `SELECT count(*) FROM granja`))
	require.Equal(t, []int64{1, 2, 3}, versions(t, pool, "s"))
}

func TestMigrationBlockedByALockGivesUpAndSaysWhy(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dsn := testbed.Postgres(t).Database(t)
	pool := open(t, testbed.With(dsn, "lock_timeout", "200ms"), postgres.PoolOptions{})
	require.NoError(t, postgres.Migrate(ctx, pool, "s", set("0001_granja.sql", granja)))
	holder, err := pool.Begin(ctx)
	require.NoError(t, err)
	_, err = holder.Exec(ctx, `LOCK TABLE granja IN ACCESS SHARE MODE`)
	require.NoError(t, err)

	files := set("0001_granja.sql", granja, "0002_zona.sql", "-- +goose Up\nINSERT INTO granja VALUES (2, 'El Soto');\nALTER TABLE granja ADD COLUMN zona TEXT;\n")
	for range 2 {
		err = postgres.Migrate(ctx, pool, "s", files)
		require.ErrorContains(t, err, "0002_zona.sql")
		require.ErrorContains(t, err, "another session keeps a table locked")
		require.True(t, postgres.Transient(err))
	}
	require.NoError(t, holder.Rollback(ctx))
	require.NoError(t, postgres.Migrate(ctx, pool, "s", files))
	require.Equal(t, 2, value[int](t, pool, `SELECT count(*) FROM granja`))
}

func TestMigrationsHaveALockTimeoutThatPooledConnectionsDoNot(t *testing.T) {
	t.Parallel()
	ctx, pool := context.Background(), emptyDatabase(t)
	files := set("0001_nota.sql", "-- +goose Up\nCREATE TABLE nota AS SELECT current_setting('lock_timeout') AS bloqueo, current_setting('statement_timeout') AS sentencia;\n")
	require.NoError(t, postgres.Migrate(ctx, pool, "s", files))
	require.Equal(t, "10s", value[string](t, pool, `SELECT bloqueo FROM nota`))
	require.Equal(t, "0", value[string](t, pool, `SELECT sentencia FROM nota`))
	require.Equal(t, "0", value[string](t, pool, `SHOW lock_timeout`))
}

func TestMigrationKilledInTheMiddleIsDoneWholeByTheNextStart(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dsn := testbed.Postgres(t).Database(t)
	pool := open(t, dsn, postgres.PoolOptions{})
	exec(t, pool, `CREATE TABLE pausa AS SELECT 600 AS segundos`)

	child := process.Command(os.Args[0])
	child.Env = append(os.Environ(), "KM0_TEST_MIGRATE="+dsn)
	child.Stderr = os.Stderr
	require.NoError(t, child.Start())
	testbed.Eventually(t, 20*time.Second, func() bool {
		return value[bool](t, pool, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep')`)
	}, "the child is not in the middle of its migration")
	require.NoError(t, child.Process.Kill())
	_ = child.Wait()

	require.Equal(t, []int64{1}, versions(t, pool, "s"))
	exec(t, pool, `UPDATE pausa SET segundos = 0`)
	require.NoError(t, postgres.Migrate(ctx, pool, "s", lentas))
	require.Equal(t, []int64{1, 2}, versions(t, pool, "s"))
	require.Equal(t, 2, value[int](t, pool, `SELECT count(*) FROM granja`))
}

func TestIndexLeftInvalidIsBuiltAgain(t *testing.T) {
	t.Parallel()
	ctx, pool := context.Background(), emptyDatabase(t)
	first, both := set("0001_granja.sql", granja), set("0001_granja.sql", granja, "0002_indice.sql", indice)
	require.NoError(t, postgres.Migrate(ctx, pool, "s", first))
	exec(t, pool, `INSERT INTO granja VALUES (2, 'La Vega')`) // the same name twice: the build breaks off

	for range 2 {
		err := postgres.Migrate(ctx, pool, "s", both)
		require.ErrorContains(t, err, "0002_indice.sql")
		require.False(t, validIndex(t, pool))
		require.Equal(t, []int64{1}, versions(t, pool, "s"))
	}
	exec(t, pool, `DELETE FROM granja WHERE id = 2`)
	require.NoError(t, postgres.Migrate(ctx, pool, "s", both))
	require.True(t, validIndex(t, pool))
	require.Equal(t, []int64{1, 2}, versions(t, pool, "s"))
}

func TestMigrateLeavesOtherInvalidIndexesAlone(t *testing.T) {
	t.Parallel()
	ctx, pool := context.Background(), emptyDatabase(t)
	exec(t, pool, `CREATE TABLE ajena (v INT)`)
	exec(t, pool, `INSERT INTO ajena VALUES (1), (1)`)
	_, err := pool.Exec(ctx, `CREATE UNIQUE INDEX CONCURRENTLY ajena_v ON ajena (v)`)
	require.Error(t, err)
	require.NoError(t, postgres.Migrate(ctx, pool, "s", set("0001_granja.sql", granja, "0002_indice.sql", indice)))
	require.NotNil(t, value[*string](t, pool, `SELECT to_regclass('ajena_v')::text`))
}
