package consumer_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/platform/consumer"
	"km0/platform/envelope"
	"km0/platform/faults"
	"km0/platform/testbed"
)

// A child process of this test binary is a consumer that the plan kills.
const (
	childDSN  = "KM0_TEST_CONSUMER_DSN"
	childPlan = "KM0_TEST_CONSUMER_FAULTS"
)

// rejecting has an effect for one event, and rejects the other.
func rejecting(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
	if err := effect(ctx, tx, e); err != nil || !strings.HasPrefix(e.ID, "no") {
		return err
	}
	return consumer.Reject("sin_stock", errors.New("none left"), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO salida (id, carga) VALUES ($1, '{}')`, e.ID)
		return err
	})
}

// consumerProcess is the child: it consumes two events until it is killed.
func consumerProcess() {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	must(faults.Arm(os.Getenv(childPlan)))
	pool, err := pgxpool.New(context.Background(), os.Getenv(childDSN))
	must(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	must(err)
	f := &feed{}
	must(consumer.Register(router, f, consumer.Consumer{
		Name: name, Topic: topic, Handlers: map[string]consumer.Handler{tipo: rejecting}, Settings: quick(),
	}, consumer.Deps{DB: pool, Drain: consumer.NewDrain()}))
	go func() { must(router.Run(context.Background())) }()
	<-router.Running()
	for _, id := range []string{"si-1", "no-1"} {
		body, err := event(id, 1).Encode()
		must(err)
		m := message.NewMessage(id, body)
		f.hand(m)
		<-m.Acked()
	}
	time.Sleep(time.Minute)
	os.Exit(3)
}

func TestConsumerKilledAnywhereHasEachEffectOnce(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		plan                string
		effects, rejections int // that are there when it is killed
	}{
		"before COMMIT":                           {faults.ConsumerInTx, 0, 0},
		"between COMMIT and acknowledgement":      {faults.ConsumerCommitted, 1, 0},
		"between dead letter and acknowledgement": {faults.DeadLetterStored, 1, 1},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dsn := testbed.Postgres(t).Database(t, testbed.Plataforma(), testbed.Set{Name: "prueba", Files: tables})
			pool := testbed.Pool(t, dsn)
			child := exec.Command(os.Args[0])
			child.Env = append(os.Environ(), childDSN+"="+dsn, childPlan+"="+c.plan+"=kill@1")
			output, err := child.CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, "%s", output)
			require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal(), "%s", output)
			require.Equal(t, c.effects, count(t, pool, `efectos`))
			require.Equal(t, c.rejections, count(t, pool, `salida`))

			r := start(t, pool, rejecting)
			for range 2 {
				r.acked(r.send(event("si-1", 1)), r.send(event("no-1", 1)))
			}
			require.Equal(t, 1, r.count(`efectos WHERE id_evento = 'si-1'`))
			require.Zero(t, r.count(`efectos WHERE id_evento = 'no-1'`))
			require.Equal(t, 1, r.count(`salida WHERE id = 'no-1'`))
			require.Equal(t, 2, r.count(`mensajes_procesados`))
			require.Len(t, r.letters(), 1)
		})
	}
}
