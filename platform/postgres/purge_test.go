package postgres_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"km0/platform/postgres"
)

const purgeLecturas = `
	DELETE FROM lecturas WHERE id IN (
	    SELECT id FROM lecturas WHERE id <= $2
	    ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)`

func TestPurgeRemovesAllThatIsOldInBatchesAndNothingElse(t *testing.T) {
	t.Parallel()
	ctx, pool := context.Background(), emptyDatabase(t)
	exec(t, pool, `CREATE TABLE lecturas AS SELECT id FROM generate_series(1, 100) AS id`)

	removed, err := postgres.Purge(ctx, pool, purgeLecturas, 20, 70)
	require.NoError(t, err)
	require.EqualValues(t, 70, removed)
	require.Equal(t, 71, value[int](t, pool, `SELECT min(id) FROM lecturas`))
	require.Equal(t, 30, value[int](t, pool, `SELECT count(*) FROM lecturas`))

	removed, err = postgres.Purge(ctx, pool, purgeLecturas, 20, 70)
	require.NoError(t, err)
	require.Zero(t, removed)
}

func TestPurgesOfSeveralProcessesShareTheWork(t *testing.T) {
	t.Parallel()
	ctx, pool := context.Background(), emptyDatabase(t)
	exec(t, pool, `CREATE TABLE lecturas AS SELECT id FROM generate_series(1, 200) AS id`)
	var purges errgroup.Group
	removed := make([]int64, 3)
	for i := range removed {
		purges.Go(func() (err error) {
			removed[i], err = postgres.Purge(ctx, pool, purgeLecturas, 10, 200)
			return err
		})
	}
	require.NoError(t, purges.Wait())
	require.EqualValues(t, 200, removed[0]+removed[1]+removed[2])
}

func TestPurgeBrokenOffTellsWhatItRemoved(t *testing.T) {
	t.Parallel()
	pool := emptyDatabase(t)
	exec(t, pool, `CREATE TABLE lecturas AS SELECT id FROM generate_series(1, 100) AS id`)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	removed, err := postgres.Purge(ctx, pool, purgeLecturas, 10, 100)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, removed)

	exec(t, pool, `CREATE FUNCTION basta() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'basta'; END $$`)
	exec(t, pool, `CREATE TRIGGER basta BEFORE DELETE ON lecturas FOR EACH ROW WHEN (OLD.id = 15) EXECUTE FUNCTION basta()`)
	removed, err = postgres.Purge(context.Background(), pool, purgeLecturas, 10, 100)
	require.ErrorContains(t, err, "basta")
	require.EqualValues(t, 10, removed)
	require.Equal(t, 90, value[int](t, pool, `SELECT count(*) FROM lecturas`))

	_, err = postgres.Purge(context.Background(), pool, purgeLecturas, 0, 100)
	require.Error(t, err)
}
