package consumer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"km0/platform/bus"
	"km0/platform/consumer"
	"km0/platform/deadletter"
	"km0/platform/envelope"
	"km0/platform/testbed"
)

func TestMain(m *testing.M) {
	if os.Getenv(childDSN) != "" {
		consumerProcess()
		return
	}
	testbed.Main(m)
}

const (
	name  = "inventario.descuento_stock"
	topic = "pedidos.eventos"
	tipo  = "pedido.creado"
)

// tables is what the handlers of these tests write to: efectos has no key, so
// that an effect that happens twice shows.
var tables = fstest.MapFS{"0001_prueba.sql": {Data: []byte(`-- +goose Up
CREATE TABLE efectos (n BIGINT GENERATED ALWAYS AS IDENTITY, id_evento TEXT NOT NULL);
CREATE TABLE stock (producto INTEGER PRIMARY KEY, unidades BIGINT NOT NULL CHECK (unidades >= 0));
CREATE TABLE salida (id TEXT PRIMARY KEY, carga JSONB NOT NULL);
`)}}

func database(t testing.TB) *pgxpool.Pool { return testbed.ModuleDatabase(t, "prueba", tables) }

// effect is the handler's work in most tests.
func effect(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
	_, err := tx.Exec(ctx, `INSERT INTO efectos (id_evento) VALUES ($1)`, e.ID)
	return err
}

// quick are settings whose retries take milliseconds.
func quick() consumer.Settings {
	return consumer.Settings{Retry: consumer.Retry{Attempts: 3, Initial: 10 * time.Millisecond, Max: 20 * time.Millisecond}}
}

// rig is one consumer, running, whose bus is the test's hand.
type rig struct {
	t        testing.TB
	pool     *pgxpool.Pool
	drain    *consumer.Drain
	registry *prometheus.Registry
	logs     *logs
	feed     *feed
	router   *message.Router
	ended    chan struct{}
	once     sync.Once
}

type rigOption func(*consumer.Consumer, *message.Router)

func with(s consumer.Settings) rigOption {
	return func(c *consumer.Consumer, _ *message.Router) { c.Settings = s }
}

func start(t testing.TB, pool *pgxpool.Pool, h consumer.Handler, options ...rigOption) *rig {
	t.Helper()
	r := &rig{
		t: t, pool: pool, drain: consumer.NewDrain(), registry: prometheus.NewRegistry(),
		logs: &logs{}, feed: &feed{}, ended: make(chan struct{}),
	}
	var err error
	r.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	require.NoError(t, err)
	c := consumer.Consumer{Name: name, Topic: topic, Handlers: map[string]consumer.Handler{tipo: h}, Settings: quick()}
	for _, o := range options {
		o(&c, r.router)
	}
	require.NoError(t, consumer.Register(r.router, r.feed, c, consumer.Deps{
		DB: pool, Drain: r.drain, Metrics: consumer.NewMetrics(r.registry),
		Logger: slog.New(slog.NewJSONHandler(r.logs, nil)),
	}))
	go func() {
		defer close(r.ended)
		_ = r.router.Run(context.Background())
	}()
	<-r.router.Running()
	t.Cleanup(func() { r.stop(10 * time.Second) })
	return r
}

// stop ends the consumer as a process does: first the drain, then the router.
func (r *rig) stop(patience time.Duration) (err error) {
	r.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		err = r.drain.Stop(ctx)
		_ = r.router.Close()
		<-r.ended
	})
	return err
}

// event has the id and type of the tests; n makes its content.
func event(id string, n int) envelope.Event {
	return envelope.Event{
		ID: id, Tipo: tipo, Version: 1, FechaMS: 1, Origen: "pedidos", Datos: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)),
	}
}

func newMessage(t testing.TB, e envelope.Event) *message.Message {
	t.Helper()
	body, err := e.Encode()
	require.NoError(t, err)
	m := message.NewMessage(uuid.NewString(), body)
	m.Metadata.Set(envelope.HeaderClave, "P-1")
	return m
}

// send hands e out once.
func (r *rig) send(e envelope.Event) *message.Message { return r.deliver(newMessage(r.t, e)) }

func (r *rig) deliver(m *message.Message) *message.Message {
	r.feed.hand(m)
	return m
}

func (r *rig) acked(ms ...*message.Message) {
	r.t.Helper()
	for _, m := range ms {
		select {
		case <-m.Acked():
		case <-m.Nacked():
			r.t.Fatal("the message was given back")
		case <-time.After(20 * time.Second):
			r.t.Fatal("the message was not acknowledged")
		}
	}
}

func (r *rig) nacked(ms ...*message.Message) {
	r.t.Helper()
	for _, m := range ms {
		select {
		case <-m.Nacked():
		case <-m.Acked():
			r.t.Fatal("the message was acknowledged")
		case <-time.After(20 * time.Second):
			r.t.Fatal("the message was not given back")
		}
	}
}

// process hands m out until it is acknowledged, as a bus does.
func (r *rig) process(m *message.Message) {
	for {
		copied := m.Copy()
		r.feed.hand(copied)
		select {
		case <-copied.Acked():
			return
		case <-copied.Nacked():
		}
	}
}

func (r *rig) count(query string, args ...any) int {
	r.t.Helper()
	return count(r.t, r.pool, query, args...)
}

func count(t testing.TB, pool *pgxpool.Pool, query string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(context.Background(), `SELECT count(*) FROM `+query, args...).Scan(&n))
	return n
}

func (r *rig) letters() []deadletter.Letter {
	r.t.Helper()
	letters, err := deadletter.Archive{Pool: r.pool}.List(context.Background(), deadletter.Filter{})
	require.NoError(r.t, err)
	return letters
}

// metric is the sum of a metric's series that have all the given label values.
func (r *rig) metric(metric string, values ...string) (sum float64) {
	r.t.Helper()
	families, err := r.registry.Gather()
	require.NoError(r.t, err)
	for _, f := range families {
		if f.GetName() != metric {
			continue
		}
	series:
		for _, m := range f.GetMetric() {
			for _, v := range values {
				found := false
				for _, l := range m.GetLabel() {
					found = found || l.GetValue() == v
				}
				if !found {
					continue series
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

func (r *rig) outcomes(o consumer.Outcome) int {
	return int(r.metric("km0_consumer_deliveries_total", string(o)))
}

// feed is a bus.Subscriber by hand.
type feed struct {
	mu       sync.Mutex
	ctx      context.Context
	out      chan *message.Message
	closed   bool
	drained  bool
	inFlight sync.WaitGroup
}

var _ bus.Subscriber = (*feed)(nil)

func (f *feed) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	f.ctx, f.out = ctx, make(chan *message.Message)
	return f.out, nil
}

// hand gives m to the consumer; after the drain it is only left.
func (f *feed) hand(m *message.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.drained || f.closed {
		m.Nack()
		return
	}
	m.SetContext(f.ctx)
	f.inFlight.Go(func() {
		select {
		case <-m.Acked():
		case <-m.Nacked():
		}
	})
	f.out <- m
}

func (f *feed) Drain(ctx context.Context) error {
	f.mu.Lock()
	f.drained = true
	f.mu.Unlock()
	settled := make(chan struct{})
	go func() { defer close(settled); f.inFlight.Wait() }()
	select {
	case <-settled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *feed) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.closed = true
		close(f.out)
	}
	return nil
}

type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// lines counts those with a text.
func (l *logs) lines(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}
