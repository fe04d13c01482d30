package outbox_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	buspg "km0/platform/bus/postgres"
	"km0/platform/faults"
	"km0/platform/keyed"
	"km0/platform/outbox"
	"km0/platform/testbed"
)

// A child process of this test binary is a relay that the plan kills.
const (
	childOutbox = "KM0_TEST_RELAY_OUTBOX" // DSN
	childBus    = "KM0_TEST_RELAY_BUS"    // DSN
	childPlan   = "KM0_TEST_RELAY_FAULTS"
)

// relayProcess is the child: it runs until it is killed.
func relayProcess() {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	ctx := context.Background()
	must(faults.Arm(os.Getenv(childPlan)))
	open := func(variable string) (*pgxpool.Pool, *keyed.Claims) {
		pool, err := pgxpool.New(ctx, os.Getenv(variable))
		must(err)
		claims := keyed.NewClaims(pool.Config().ConnConfig.Copy(), nil)
		go func() { must(claims.Run(ctx)) }()
		return pool, claims
	}
	pool, claims := open(childOutbox)
	busPool, busClaims := open(childBus)
	driver, err := buspg.Open(buspg.Config{Pool: busPool, Claims: busClaims})
	must(err)
	relay, err := outbox.NewRelay(outbox.RelayConfig{
		Outbox: outbox.New(outbox.Config{Pool: pool, Origen: "pedidos"}), Publisher: driver.Publisher(), Claims: claims,
	})
	must(err)
	must(relay.Start(ctx))
	time.Sleep(time.Minute)
	os.Exit(3)
}

func TestRelayKilledAfterConfirmPublishesAgainWithSameID(t *testing.T) {
	t.Parallel()
	for name, plan := range map[string]string{
		"before the mark": faults.RelayConfirmed + "=kill@50",
		"after the mark":  faults.RelayMarked + "=kill@2",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testbed.Postgres(t)
			dsn, busDSN := server.Database(t, testbed.Plataforma()), server.Database(t, testbed.Bus())
			pool, busPool := testbed.Pool(t, dsn), testbed.Pool(t, busDSN)
			f := fixture{pool, outbox.New(outbox.Config{Pool: pool, Origen: "pedidos"})}
			f.fill(t, 40, 50)

			binary, err := os.Executable()
			require.NoError(t, err)
			child := exec.CommandContext(t.Context(), binary)
			child.Env = append(os.Environ(), childOutbox+"="+dsn, childBus+"="+busDSN, childPlan+"="+plan)
			child.Stderr = os.Stderr
			var exit *exec.ExitError
			require.True(t, errors.As(child.Run(), &exit), "the relay was not killed")
			require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal())
			left := f.count(t, pending)
			require.Positive(t, left)

			driver, err := buspg.Open(buspg.Config{Pool: busPool, Claims: claims(t, busPool)})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, driver.Close()) })
			f.relay(t, func(cfg *outbox.RelayConfig) { cfg.Publisher = driver.Publisher() })
			require.Eventually(t, func() bool { return f.count(t, pending) == 0 }, wait, tick)
			requireFirstDeliveriesInOrder(t, busPool, 2000)
			if plan == faults.RelayConfirmed+"=kill@50" {
				var messages int
				require.NoError(t, busPool.QueryRow(t.Context(), `SELECT count(*) FROM mensajes`).Scan(&messages))
				require.Greater(t, messages, 2000, "what was confirmed and not marked goes out again")
			}
		})
	}
}

// requireFirstDeliveriesInOrder checks the log of the bus: every event is there
// under its own id, and the first copies of a key's events are in their order.
func requireFirstDeliveriesInOrder(t testing.TB, busPool *pgxpool.Pool, events int) {
	t.Helper()
	var distinct, swapped int
	require.NoError(t, busPool.QueryRow(t.Context(), `
		WITH first AS (
			SELECT clave, id, min(posicion) AS posicion, min((convert_from(carga, 'UTF8')::jsonb #>> '{datos,n}')::int) AS n
			FROM mensajes GROUP BY clave, id),
		steps AS (SELECT n, lag(n, 1, 0) OVER (PARTITION BY clave ORDER BY posicion) AS before FROM first)
		SELECT (SELECT count(DISTINCT id) FROM mensajes), (SELECT count(*) FROM steps WHERE n <> before + 1)`,
	).Scan(&distinct, &swapped))
	require.Equal(t, events, distinct)
	require.Zero(t, swapped, "swapped")
}
