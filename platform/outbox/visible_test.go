package outbox_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"km0/platform/bus"
	"km0/platform/bus/memory"
	buspg "km0/platform/bus/postgres"
	"km0/platform/keyed"
	"km0/platform/outbox"
	"km0/platform/testbed"
)

// TestNoConsumerSeesAnEventBeforeItsData is case C34, on the fastest bus and on
// PostgreSQL: half of the transactions pause before COMMIT, a third roll back.
func TestNoConsumerSeesAnEventBeforeItsData(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		seesOnlyCommitted(t, memory.Open(memory.Config{}))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		pool := testbed.BusDatabase(t)
		claims := keyed.NewClaims(pool.Config().ConnConfig.Copy(), nil)
		go func() { _ = claims.Run(t.Context()) }()
		driver, err := buspg.Open(buspg.Config{Pool: pool, Claims: claims})
		require.NoError(t, err)
		seesOnlyCommitted(t, driver)
	})
}

func seesOnlyCommitted(t *testing.T, driver bus.Driver) {
	t.Helper()
	f := newFixture(t)
	_, err := f.pool.Exec(t.Context(), `CREATE TABLE cosas (id TEXT PRIMARY KEY)`)
	require.NoError(t, err)
	sub, err := driver.Subscriber(bus.Subscription{Consumer: "prueba.mira", Topic: topic, Concurrency: 16})
	require.NoError(t, err)
	delivered, err := sub.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	f.relay(t, func(cfg *outbox.RelayConfig) { cfg.Publisher = driver.Publisher() })
	rolledBack := errors.New("rolled back on purpose")
	for i := range 90 {
		go func() {
			id := fmt.Sprint("P-", i)
			err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
				if err := f.outbox.Publish(t.Context(), outbox.Tx(tx), event(id, 1)); err != nil {
					return err
				}
				f.outbox.Wake()
				if i%2 == 0 {
					time.Sleep(200 * time.Millisecond) // what the case asks for: a pause before COMMIT
				}
				if i%3 == 0 {
					return rolledBack
				}
				_, err := tx.Exec(t.Context(), `INSERT INTO cosas VALUES ($1)`, id)
				return err
			})
			if err != nil && !errors.Is(err, rolledBack) {
				t.Error(err)
			}
			f.outbox.Wake()
		}()
	}
	seen := map[string]bool{}
	for len(seen) < 60 {
		var m *message.Message
		select {
		case m = <-delivered:
		case <-time.After(wait):
			t.Fatalf("%d of 60 events after %s", len(seen), wait)
		}
		key := m.Metadata.Get("clave")
		var there bool
		require.NoError(t, f.pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM cosas WHERE id = $1)`, key).Scan(&there))
		require.True(t, there, "%s was delivered before its data were committed, or after they were rolled back", key)
		seen[key] = true
		m.Ack()
	}
	require.NoError(t, sub.Close())
	require.NoError(t, driver.Close())
}
