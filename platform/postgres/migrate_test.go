package postgres_test

import (
	"context"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"km0/platform/postgres"
	"km0/platform/testbed"
)

// set makes a migration set of name, SQL pairs.
func set(pairs ...string) fstest.MapFS {
	files := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		files[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return files
}

const (
	granja  = "-- +goose Up\nCREATE TABLE granja (id INT PRIMARY KEY, nombre TEXT);\nINSERT INTO granja VALUES (1, 'La Vega');\n"
	cosecha = "-- +goose Up\nCREATE TABLE cosecha (id INT);\nINSERT INTO cosecha VALUES (1);\n"
	mercado = "-- +goose Up\nCREATE TABLE mercado (id INT);\n"
	indice  = "-- +goose NO TRANSACTION\n-- +goose Up\n" +
		"CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS granja_nombre ON granja (nombre);\n" +
		"-- +goose Down\nDROP INDEX granja_nombre;\n"
)

func emptyDatabase(t testing.TB) *pgxpool.Pool {
	return open(t, testbed.Postgres(t).Database(t), postgres.PoolOptions{MaxConns: 4})
}

func versions(t testing.TB, pool *pgxpool.Pool, set string) []int64 {
	t.Helper()
	return value[[]int64](t, pool, `SELECT array_agg(version_id ORDER BY id) FROM goose_`+set+` WHERE version_id > 0`)
}

func TestMigrateKeepsTheSetsOfOneDatabaseApart(t *testing.T) {
	t.Parallel()
	ctx, pool := context.Background(), emptyDatabase(t)
	require.NoError(t, postgres.Migrate(ctx, pool, "plataforma", set("0001_granja.sql", granja, "0002_cosecha.sql", cosecha)))
	require.NoError(t, postgres.Migrate(ctx, pool, "pedidos", set("0001_mercado.sql", mercado)))

	require.Equal(t, []int64{1, 2}, versions(t, pool, "plataforma"))
	require.Equal(t, []int64{1}, versions(t, pool, "pedidos"))
	require.NotNil(t, value[*string](t, pool, `SELECT to_regclass('mercado')::text`))
}

func TestMigrateRepeatedChangesNothing(t *testing.T) {
	t.Parallel()
	ctx, pool := context.Background(), emptyDatabase(t)
	files := set("0001_granja.sql", granja, "0002_indice.sql", indice)
	for range 3 {
		require.NoError(t, postgres.Migrate(ctx, pool, "s", files))
	}
	require.Equal(t, []int64{1, 2}, versions(t, pool, "s"))
	require.Equal(t, 1, value[int](t, pool, `SELECT count(*) FROM granja`))
}

// The index built CONCURRENTLY is the trap: it deadlocks with instances that
// wait for the migration lock inside a statement.
func TestInstancesThatStartTogetherMigrateOnce(t *testing.T) {
	t.Parallel()
	dsn := testbed.Postgres(t).Database(t)
	files := set("0001_granja.sql", granja, "0002_cosecha.sql", cosecha+"SELECT pg_sleep(0.3);\n", "0003_indice.sql", indice)

	var instances errgroup.Group
	for range 8 {
		pool := open(t, dsn, postgres.PoolOptions{MaxConns: 1})
		instances.Go(func() error { return postgres.Migrate(context.Background(), pool, "s", files) })
	}
	require.NoError(t, instances.Wait())

	pool := open(t, dsn, postgres.PoolOptions{})
	require.Equal(t, []int64{1, 2, 3}, versions(t, pool, "s"))
	require.Equal(t, 1, value[int](t, pool, `SELECT count(*) FROM cosecha`))
	require.True(t, validIndex(t, pool))
}

func TestMigrateRefusesASchemaNewerThanTheBinary(t *testing.T) {
	t.Parallel()
	ctx, pool := context.Background(), emptyDatabase(t)
	newer := set("0001_granja.sql", granja, "0002_cosecha.sql", cosecha, "0004_mercado.sql", mercado)
	older := set("0001_granja.sql", granja, "0002_cosecha.sql", cosecha)
	require.NoError(t, postgres.Migrate(ctx, pool, "s", newer))

	for range 2 { // two builds, alternately
		err := postgres.Migrate(ctx, pool, "s", older)
		var refused *postgres.NewerSchemaError
		require.ErrorAs(t, err, &refused)
		require.EqualValues(t, 4, refused.Found)
		require.EqualValues(t, 2, refused.Known)
		require.ErrorContains(t, err, `migration 4 of set "s", this binary knows up to 2: start the newer binary`)
		require.NoError(t, postgres.Migrate(ctx, pool, "s", newer))
	}
	require.Equal(t, []int64{1, 2, 4}, versions(t, pool, "s"))
}

func TestMigrateAppliesAMissingMiddleFile(t *testing.T) {
	t.Parallel()
	ctx, pool := context.Background(), emptyDatabase(t)
	files := set("0001_granja.sql", granja, "0002_cosecha.sql", cosecha, "0003_mercado.sql", mercado)
	require.NoError(t, postgres.Migrate(ctx, pool, "s", files))
	exec(t, pool, `DROP TABLE cosecha`)
	exec(t, pool, `DELETE FROM goose_s WHERE version_id = 2`)

	require.NoError(t, postgres.Migrate(ctx, pool, "s", files))
	require.Equal(t, []int64{1, 3, 2}, versions(t, pool, "s"))
	require.Equal(t, 1, value[int](t, pool, `SELECT count(*) FROM cosecha`))
}

func TestMigrateReportsAMissingMiddleFileThatCannotBeApplied(t *testing.T) {
	t.Parallel()
	ctx, pool := context.Background(), emptyDatabase(t)
	files := set("0001_granja.sql", granja, "0002_cosecha.sql", cosecha, "0003_mercado.sql", mercado)
	require.NoError(t, postgres.Migrate(ctx, pool, "s", files))
	exec(t, pool, `DELETE FROM goose_s WHERE version_id = 2`) // but its table is there

	err := postgres.Migrate(ctx, pool, "s", files)
	var failed *postgres.MigrationError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "0002_cosecha.sql", failed.File)
}

func TestMigrateRefusesSetsItCouldNotRepeatAfterACrash(t *testing.T) {
	t.Parallel()
	pool := emptyDatabase(t)
	tests := map[string]struct {
		files fstest.MapFS
		says  string
	}{
		"two statements outside a transaction": {
			set("0001_granja.sql", granja, "0002_dos.sql", "-- +goose NO TRANSACTION\n-- +goose Up\nDROP TABLE IF EXISTS a;\nDROP TABLE IF EXISTS b;\n"),
			"file 0002_dos.sql: a NO TRANSACTION migration must be one statement",
		},
		"a statement outside a transaction that fails the second time": {
			set("0001_indice.sql", "-- +goose NO TRANSACTION\n-- +goose Up\nCREATE INDEX CONCURRENTLY i ON granja (id);\n"),
			"file 0001_indice.sql",
		},
		"no number": {set("granja.sql", granja), "file granja.sql: the name must begin with a number"},
		"no files":  {set("README.md", "x"), "no *.sql files"},
		"the same number twice": {
			set("0001_granja.sql", granja, "0001_cosecha.sql", cosecha), "0001_granja.sql",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, postgres.Migrate(context.Background(), pool, "s", test.files), test.says)
			require.Nil(t, value[*string](t, pool, `SELECT to_regclass('granja')::text`))
		})
	}
	require.ErrorContains(t, postgres.Migrate(context.Background(), pool, "S; DROP", set("0001_granja.sql", granja)), "lower-case")
}
