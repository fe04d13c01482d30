package postgres_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/platform/bus"
	"km0/platform/bus/bustest"
	"km0/platform/bus/postgres"
	"km0/platform/keyed"
	"km0/platform/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const maxBytes = 64 << 10

func TestConformance(t *testing.T) {
	t.Parallel()
	bustest.Run(t, func(t *testing.T) bustest.Harness {
		pool := testbed.BusDatabase(t)
		return bustest.Harness{
			Open:     func() bus.Driver { return open(t, pool) },
			MaxBytes: maxBytes, DueTimes: true,
		}
	})
}

// open gives a driver with a session of its own, as another process has it.
func open(t testing.TB, pool *pgxpool.Pool) *postgres.Driver {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	claims := keyed.NewClaims(pool.Config().ConnConfig.Copy(), nil)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = claims.Run(ctx) }()
	d, err := postgres.Open(postgres.Config{Pool: pool, Claims: claims, MaxBytes: maxBytes})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, d.Close())
		cancel()
		<-ended
	})
	return d
}
