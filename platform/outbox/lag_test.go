package outbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"km0/platform/outbox"
)

func TestLagCountsWhatIsPendingAndHowOldItIs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lag, err := f.outbox.Lag(t.Context())
	require.NoError(t, err)
	require.Zero(t, lag)

	f.publish(t, event("P-1", 1), event("P-1", 2), event("P-2", 1))
	_, err = f.pool.Exec(t.Context(), `
		UPDATE outbox SET publicado_en = CASE WHEN posicion = 1 THEN now() END,
			apartado_en = CASE WHEN posicion = 2 THEN now() END, creado_en = now() - (10 - posicion) * interval '1 minute'`)
	require.NoError(t, err)
	lag, err = f.outbox.Lag(t.Context())
	require.NoError(t, err)
	require.InDelta(t, 8*60, lag.OldestSeconds, 30)
	lag.OldestSeconds = 0
	require.Equal(t, outbox.Lag{Pending: 2, SetAside: 1}, lag)
}

func TestPurgeRemovesOldPublishedRowsAndNothingElse(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.fill(t, 100, 35)
	_, err := f.pool.Exec(t.Context(), `
		UPDATE outbox SET publicado_en = CASE WHEN posicion <= 2500 THEN now() - interval '15 days' WHEN posicion <= 3000 THEN now() - interval '13 days' END,
			apartado_en = CASE WHEN posicion > 3400 THEN now() - interval '15 days' END, creado_en = now() - interval '20 days'`)
	require.NoError(t, err)
	n, err := f.outbox.Purge(t.Context(), 14*24*time.Hour)
	require.NoError(t, err)
	require.EqualValues(t, 2500, n)
	require.Equal(t, 1000, f.count(t, "true"))
	require.Equal(t, 500, f.count(t, pending))
}
