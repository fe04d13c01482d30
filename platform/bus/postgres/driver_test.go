package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/platform/bus"
	"km0/platform/bus/postgres"
	"km0/platform/keyed"
	"km0/platform/testbed"
)

const (
	topic = "pedidos.eventos"
	wait  = 30 * time.Second
	tick  = 10 * time.Millisecond
)

func subscription(consumer string) bus.Topology {
	return bus.Topology{Subscriptions: []bus.Subscription{{Consumer: consumer, Topic: topic}}}
}

func event(key string) *message.Message {
	m := message.NewMessage(key, []byte(`{}`))
	m.Metadata.Set("clave", key)
	return m
}

func count(t testing.TB, pool *pgxpool.Pool, query string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), query, args...).Scan(&n))
	return n
}

func TestASubscriptionMissesNothingThatIsPublishedMeanwhile(t *testing.T) {
	t.Parallel()
	pool := testbed.BusDatabase(t)
	d := open(t, pool)
	var publishers sync.WaitGroup
	var declared atomic.Bool
	for p := range 8 {
		publishers.Go(func() {
			for n := 0; n < 50 || !declared.Load(); n++ {
				if err := d.Publisher().Publish(topic, event(fmt.Sprint(p, "-", n))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for c := range 20 {
		require.NoError(t, d.Declare(t.Context(), subscription(fmt.Sprint("consumidor ", c))))
	}
	declared.Store(true)
	publishers.Wait()
	messages := count(t, pool, `SELECT count(*) FROM mensajes`)
	require.GreaterOrEqual(t, messages, 400)
	require.Zero(t, count(t, pool, `
		SELECT count(*) FROM suscripciones s WHERE (SELECT count(*) FROM entregas e WHERE e.consumidor = s.consumidor) <> $1`, messages))
}

func TestAConsumerThatMovedToAnotherTopicIsAnError(t *testing.T) {
	t.Parallel()
	d := open(t, testbed.BusDatabase(t))
	require.NoError(t, d.Declare(t.Context(), subscription("inventario")))
	moved := subscription("inventario")
	moved.Subscriptions[0].Topic = "pagos.eventos"
	require.ErrorContains(t, d.Declare(t.Context(), moved), "it reads pedidos.eventos already")
	sub, err := d.Subscriber(moved.Subscriptions[0])
	require.NoError(t, err)
	_, err = sub.Subscribe(t.Context(), "pagos.eventos")
	require.ErrorContains(t, err, "it reads pedidos.eventos already")
}

func TestAConsumerGetsItsTypesAndWhatHasNone(t *testing.T) {
	t.Parallel()
	pool := testbed.BusDatabase(t)
	d := open(t, pool)
	typed := func(id, tipo string) *message.Message {
		m := event(id)
		m.Metadata.Set("tipo", tipo)
		return m
	}
	all := []*message.Message{typed("suyo", "pedido.creado"), typed("ajeno", "pedido.pagado"), event("sin tipo")}
	require.NoError(t, d.Publisher().Publish(topic, all...)) // for the back-fill
	top := subscription("inventario")
	top.Subscriptions[0].Types = []string{"pedido.creado"}
	require.NoError(t, d.Declare(t.Context(), top))
	require.NoError(t, d.Publisher().Publish(topic, all...))
	require.Equal(t, 4, count(t, pool, `SELECT count(*) FROM entregas JOIN mensajes USING (posicion) WHERE id <> 'ajeno'`))
	require.Equal(t, 4, count(t, pool, `SELECT count(*) FROM entregas`))

	top.Subscriptions[0].Types = []string{"pedido.pagado"} // a newer version beside this one
	require.NoError(t, d.Declare(t.Context(), top))
	require.NoError(t, d.Publisher().Publish(topic, all...))
	require.Equal(t, 7, count(t, pool, `SELECT count(*) FROM entregas`))
}

func TestConcurrentCallsShareRoundTripsAndABadMessageHurtsOnlyItself(t *testing.T) {
	t.Parallel()
	pool := testbed.BusDatabase(t)
	d := open(t, pool)
	pub := d.Publisher()
	hold, err := pool.Begin(t.Context()) // both writers wait for it: the calls gather
	require.NoError(t, err)
	_, err = hold.Exec(t.Context(), `LOCK TABLE mensajes IN SHARE MODE`)
	require.NoError(t, err)
	var calls, arrived sync.WaitGroup
	refused := make(chan error, 2)
	for n := range 600 {
		m := event(fmt.Sprint("k", n))
		bad := n == 123 || n == 456
		if bad {
			m.Metadata.Set("clave", "no\x00text")
		}
		arrived.Add(1)
		calls.Go(func() {
			arrived.Done()
			switch err := pub.Publish(topic, m); {
			case bad:
				refused <- err
			case err != nil:
				t.Error(err)
			}
		})
	}
	arrived.Wait()
	require.NoError(t, hold.Rollback(t.Context()))
	calls.Wait()
	for range 2 {
		require.ErrorIs(t, <-refused, bus.ErrRefused)
	}
	require.Equal(t, 598, count(t, pool, `SELECT count(*) FROM mensajes`))

	for round := range 600 {
		calls.Go(func() {
			if err := pub.Publish("otro", event(fmt.Sprint("r", round))); err != nil {
				t.Error(err)
			}
		})
		calls.Go(func() {
			if err := pub.Publish("tercero", event(fmt.Sprint("r", round))); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	require.Equal(t, 600, count(t, pool, `SELECT count(*) FROM mensajes WHERE topico = 'otro'`))
	transactions := count(t, pool, `SELECT count(DISTINCT xmin::text) FROM mensajes WHERE topico IN ('otro', 'tercero')`)
	require.Less(t, transactions, 400, "1200 calls on two topics")
}

func TestAServerThatGoesAwayIsNoRefusalAndIsUsedAgainWhenItIsBack(t *testing.T) {
	t.Parallel()
	server := testbed.PrivatePostgres(t)
	pool := testbed.Pool(t, server.Database(t, testbed.Bus()))
	d := open(t, pool)
	require.NoError(t, d.Declare(t.Context(), subscription("inventario")))
	sub, err := d.Subscriber(subscription("inventario").Subscriptions[0])
	require.NoError(t, err)
	out, err := sub.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	pub := d.Publisher()
	require.NoError(t, pub.Publish(topic, event("antes")))
	server.Stop(t, testbed.Immediate)
	err = pub.Publish(topic, event("durante"))
	require.Error(t, err)
	require.NotErrorIs(t, err, bus.ErrRefused)
	server.Start(t)
	require.Eventually(t, func() bool { return pub.Publish(topic, event("despues")) == nil }, wait, 100*time.Millisecond)
	got := map[string]bool{}
	for !got["antes"] || !got["despues"] {
		select {
		case m := <-out:
			got[m.UUID] = true
			m.Ack()
		case <-time.After(wait):
			t.Fatalf("only %v was delivered", got)
		}
	}
}

func TestPublishGivesUpOnASilentServer(t *testing.T) {
	t.Parallel()
	pool := testbed.BusDatabase(t)
	d, err := postgres.Open(postgres.Config{Pool: pool, Claims: keyed.NewClaims(pool.Config().ConnConfig, nil), Timeout: 500 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	hold, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = hold.Exec(t.Context(), `LOCK TABLE mensajes IN SHARE MODE`)
	require.NoError(t, err)
	start := time.Now()
	var calls sync.WaitGroup
	for n := range 20 {
		calls.Go(func() {
			if err := d.Publisher().Publish(topic, event(fmt.Sprint("k", n))); err == nil || errors.Is(err, bus.ErrRefused) {
				t.Errorf("published past a lock, or refused: %v", err)
			}
		})
	}
	calls.Wait()
	require.Less(t, time.Since(start), 5*time.Second)
	require.NoError(t, hold.Rollback(t.Context()))
	require.NoError(t, d.Publisher().Publish(topic, event("despues")))
}

func TestPurgeKeepsWhatIsYoungOrNotAcknowledged(t *testing.T) {
	t.Parallel()
	pool := testbed.BusDatabase(t)
	d := open(t, pool)
	require.NoError(t, d.Declare(t.Context(), subscription("inventario")))
	_, err := pool.Exec(t.Context(), `
		INSERT INTO mensajes (topico, id, tipo, clave, carril, cabeceras, carga, publicado_en)
		SELECT 'pedidos.eventos', n::text, '', 'k', 0, '{}', '', now() - CASE WHEN n <= 3000 THEN interval '15 days' ELSE interval '1 day' END
		FROM generate_series(1, 4000) n`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `INSERT INTO entregas (consumidor, posicion, carril, clave)
		SELECT 'inventario', posicion, 0, 'k' FROM mensajes WHERE id::int % 3 = 0`)
	require.NoError(t, err)
	n, err := d.Purge(t.Context(), 14*24*time.Hour)
	require.NoError(t, err)
	require.EqualValues(t, 2000, n)
	require.Equal(t, 2000, count(t, pool, `SELECT count(*) FROM mensajes`))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM entregas LEFT JOIN mensajes USING (posicion) WHERE mensajes.posicion IS NULL`))
}

// TestPurgeNeverRemovesWhatANewSubscriptionPointsTo: such a delivery would be
// counted for ever and could not be made.
func TestPurgeNeverRemovesWhatANewSubscriptionPointsTo(t *testing.T) {
	t.Parallel()
	pool := testbed.BusDatabase(t)
	d := open(t, pool)
	var removed int64
	for round := range 20 {
		_, err := pool.Exec(t.Context(), `
			INSERT INTO mensajes (topico, id, tipo, clave, carril, cabeceras, carga, publicado_en)
			SELECT 'pedidos.eventos', n::text, '', 'k', 0, '{}', '', now() - interval '15 days' FROM generate_series(1, 500) n`)
		require.NoError(t, err)
		var both sync.WaitGroup
		both.Go(func() {
			if err := d.Declare(t.Context(), subscription(fmt.Sprint("c", round))); err != nil {
				t.Error(err)
			}
		})
		both.Go(func() {
			n, err := d.Purge(t.Context(), 14*24*time.Hour)
			if err != nil {
				t.Error(err)
			}
			removed += n
		})
		both.Wait()
		require.Zero(t, count(t, pool, `SELECT count(*) FROM entregas LEFT JOIN mensajes USING (posicion) WHERE mensajes.posicion IS NULL`))
		_, err = pool.Exec(t.Context(), `DELETE FROM entregas`)
		require.NoError(t, err)
	}
	t.Logf("%d messages removed", removed)
}

func TestADueTimeHoldsForALateConsumerToo(t *testing.T) {
	t.Parallel()
	pool := testbed.BusDatabase(t)
	d := open(t, pool)
	waits := event("espera")
	waits.Metadata.Set("no_antes", time.Now().Add(time.Hour).Format(time.RFC3339))
	require.NoError(t, d.Publisher().Publish(topic, waits, event("otra")))
	sub, err := d.Subscriber(subscription("inventario").Subscriptions[0])
	require.NoError(t, err)
	out, err := sub.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	select {
	case m := <-out:
		require.Equal(t, "otra", m.UUID)
		m.Ack()
	case <-time.After(wait):
		t.Fatal("nothing was delivered")
	}
	select {
	case m := <-out:
		t.Fatalf("%s was delivered before it was due", m.UUID)
	case <-time.After(1500 * time.Millisecond): // longer than a look at the whole table takes to come
	}
	_, err = pool.Exec(t.Context(), `UPDATE entregas SET no_antes = now()`)
	require.NoError(t, err)
	select {
	case m := <-out:
		require.Equal(t, "espera", m.UUID)
		m.Ack()
	case <-time.After(wait):
		t.Fatal("not delivered when it was due")
	}
}

func TestOpenNeedsAPoolAndClaims(t *testing.T) {
	t.Parallel()
	_, err := postgres.Open(postgres.Config{})
	require.ErrorContains(t, err, "a pool and claims")
	_, err = postgres.Open(postgres.Config{Claims: keyed.NewClaims(nil, nil)})
	require.Error(t, err)
}

func TestDeclareEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, open(t, testbed.BusDatabase(t)).Declare(ctx, subscription("inventario")), context.Canceled)
}
