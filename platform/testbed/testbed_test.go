package testbed_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/migrations"
	"km0/platform/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

func value[T any](t testing.TB, pool *pgxpool.Pool, query string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, pool.QueryRow(context.Background(), query, args...).Scan(&v))
	return v
}

func TestModuleDatabaseHasThePlatformsAndTheModulesTables(t *testing.T) {
	t.Parallel()
	pool := testbed.ModuleDatabase(t, "pedidos", migrations.Pedidos())
	require.Equal(t, 6, value[int](t, pool, `
		SELECT count(*) FROM pg_tables
		WHERE tablename IN ('outbox', 'mensajes_procesados', 'mensajes_muertos', 'pedidos', 'goose_plataforma', 'goose_pedidos')`))
}

func TestDatabasesOfOneTemplateAreSeparateAndDropped(t *testing.T) {
	t.Parallel()
	var name string
	t.Run("use", func(t *testing.T) {
		one, two := testbed.BusDatabase(t), testbed.BusDatabase(t)
		_, err := one.Exec(context.Background(), `INSERT INTO suscripciones (consumidor, topico) VALUES ('a', 'b')`)
		require.NoError(t, err)
		require.Zero(t, value[int](t, two, `SELECT count(*) FROM suscripciones`))
		name = value[string](t, one, `SELECT current_database()`)
	})
	pool := testbed.Pool(t, testbed.Postgres(t).DSN("postgres"))
	require.False(t, value[bool](t, pool, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name))
}

func TestSetsOfOneNameAndOtherFilesAreOtherTemplates(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"granja", "cosecha"} {
		files := fstest.MapFS{"0001_tabla.sql": {Data: []byte("-- +goose Up\nCREATE TABLE " + table + " (id INT);\n")}}
		pool := testbed.Pool(t, testbed.Postgres(t).Database(t, testbed.Set{Name: "s", Files: files}))
		require.Zero(t, value[int](t, pool, `SELECT count(*) FROM `+table))
	}
}

func TestTheSharedServerIsQuickAndTheDurableOneSafe(t *testing.T) {
	t.Parallel()
	if os.Getenv("KM0_TEST_DSN") != "" || os.Getenv("KM0_TEST_FSYNC") != "" {
		t.Skip("the environment chooses the server")
	}
	for server, fsync := range map[*testbed.Server]string{testbed.Postgres(t): "off", testbed.PostgresDurable(t): "on"} {
		require.Equal(t, fsync, value[string](t, testbed.Pool(t, server.Database(t)), `SHOW fsync`))
	}
}

func TestAPrivateServerKeepsDataAndDSNHoweverItIsStopped(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := testbed.PrivatePostgres(t)
	dsn := server.Database(t, testbed.Bus())
	require.Equal(t, "on", value[string](t, testbed.Pool(t, dsn), `SHOW fsync`))
	for i, mode := range []testbed.StopMode{testbed.Fast, testbed.Immediate, testbed.Kill} {
		pool := testbed.Pool(t, dsn)
		_, err := pool.Exec(ctx, `INSERT INTO suscripciones (consumidor, topico) VALUES ($1, 'b')`, fmt.Sprint(mode))
		require.NoError(t, err)
		server.Stop(t, mode)
		server.Stop(t, mode)
		require.Error(t, pool.Ping(ctx))
		server.Start(t)
		server.Start(t)
		require.Equal(t, i+1, value[int](t, testbed.Pool(t, dsn), `SELECT count(*) FROM suscripciones`))
	}
}

func TestDirIsEnteredByEveryUserAndRemovedWithItsTest(t *testing.T) {
	t.Parallel()
	var dir string
	t.Run("use", func(t *testing.T) {
		dir = testbed.Dir(t)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "nota"), nil, 0o600))
		for path := dir; path != filepath.Clean(os.TempDir()); path = filepath.Dir(path) {
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.NotZero(t, info.Mode()&0o001, path)
		}
	})
	require.NoDirExists(t, dir)
}

func TestEventuallyWaitsForTheCondition(t *testing.T) {
	t.Parallel()
	asked := 0
	testbed.Eventually(t, time.Minute, func() bool { asked++; return asked == 3 }, "never %d", 3)
	require.Equal(t, 3, asked)
}

func TestWithAddsAParameterToEitherFormOfDSN(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{"postgres://ana:s@servidor:5433/km0?sslmode=disable", "host=servidor port=5433 user=ana password=s dbname=km0"} {
		cfg, err := pgxpool.ParseConfig(testbed.With(testbed.With(dsn, "dbname", "otra"), "application_name", `it's a \ b`))
		require.NoError(t, err)
		require.Equal(t, "otra", cfg.ConnConfig.Database)
		require.Equal(t, "servidor", cfg.ConnConfig.Host)
		require.Equal(t, `it's a \ b`, cfg.ConnConfig.RuntimeParams["application_name"])
	}
}
