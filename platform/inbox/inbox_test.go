package inbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/platform/deadletter"
	"km0/platform/inbox"
	"km0/platform/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const name = "inventario.descuento_stock"

// record runs Record in a transaction of its own.
func record(pool *pgxpool.Pool, consumer, id, content string) (duplicate bool, err error) {
	ctx := context.Background()
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		duplicate, err = inbox.Record(ctx, tx, consumer, id, []byte(content))
		return err
	})
	return duplicate, err
}

func TestAMessageIsNewOncePerConsumer(t *testing.T) {
	t.Parallel()
	pool := testbed.ModuleDatabase(t, "prueba", nil)
	for _, consumer := range []string{name, "inventario.reserva_grpc"} {
		for i := range 3 {
			duplicate, err := record(pool, consumer, "e-1", "a")
			require.NoError(t, err)
			require.Equal(t, i > 0, duplicate)
		}
	}
	duplicate, err := record(pool, name, "e-1", "b")
	require.ErrorIs(t, err, inbox.ErrOtherContent)
	require.False(t, duplicate)
}

func TestRecordWaitsForTheTransactionThatIsDoingTheSame(t *testing.T) {
	t.Parallel()
	pool := testbed.ModuleDatabase(t, "prueba", nil)
	for name, end := range map[string]func(context.Context, pgx.Tx) error{
		"commit":   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"rollback": func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
	} {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = inbox.Record(t.Context(), tx, name, "e-1", []byte("a"))
		require.NoError(t, err)
		answer := make(chan bool, 1)
		go func() {
			duplicate, err := record(pool, name, "e-1", "a")
			answer <- duplicate && err == nil
		}()
		testbed.Eventually(t, 10*time.Second, func() bool {
			var waiting int
			err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE NOT granted`).Scan(&waiting)
			return err == nil && waiting > 0
		}, "the second waits")
		require.NoError(t, end(t.Context(), tx))
		require.Equal(t, name == "commit", <-answer)
	}
}

func TestPurgeForgetsTheOldAndKeepsWhatMayComeAgain(t *testing.T) {
	t.Parallel()
	pool := testbed.ModuleDatabase(t, "prueba", nil)
	for _, id := range []string{"viejo", "muerto\u202e", "nuevo"} {
		_, err := record(pool, name, id, "a")
		require.NoError(t, err)
	}
	_, err := pool.Exec(t.Context(), `UPDATE mensajes_procesados SET procesado_en = now() - interval '15 days' WHERE id_mensaje <> 'nuevo'`)
	require.NoError(t, err)
	require.NoError(t, deadletter.Archive{Pool: pool}.Store(t.Context(), deadletter.Letter{
		Consumer: name, MessageID: "muerto\u202e", Topic: "t", Class: deadletter.Negocio, Error: "x", Fingerprint: []byte("a"),
	}))

	n, err := inbox.Purge(t.Context(), pool, 14*24*time.Hour)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	rows, err := pool.Query(t.Context(), `SELECT id_mensaje FROM mensajes_procesados ORDER BY 1`)
	require.NoError(t, err)
	kept, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"muerto\u202e", "nuevo"}, kept)
}
