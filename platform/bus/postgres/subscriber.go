package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"km0/platform/bus"
	"km0/platform/envelope"
	"km0/platform/faults"
	"km0/platform/keyed"
	"km0/platform/postgres"
)

// Subscriber implements bus.Driver. Its Subscribe declares the subscription if
// Declare did not.
func (d *Driver) Subscriber(s bus.Subscription) (bus.Subscriber, error) {
	if s.Consumer == "" || s.Topic == "" {
		return nil, errors.New("a subscription needs a consumer and a topic")
	}
	return &subscriber{driver: d, subscription: s}, nil
}

type subscriber struct {
	driver       *Driver
	subscription bus.Subscription

	mu     sync.Mutex
	open   []*keyed.Subscriber
	closed bool
}

// Subscribe implements message.Subscriber.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if topic != s.subscription.Topic {
		return nil, fmt.Errorf("consumer %s reads topic %s, not %s", s.subscription.Consumer, s.subscription.Topic, topic)
	}
	if err := s.driver.declare(ctx, s.subscription); err != nil {
		return nil, fmt.Errorf("subscribe %s to %s: %w", s.subscription.Consumer, topic, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	reader := keyed.NewSubscriber(keyed.Config{
		Group: s.subscription.Consumer, WakeOn: topic,
		Table:       deliveries{s.driver.cfg.Pool, s.subscription.Consumer},
		Claims:      s.driver.cfg.Claims,
		Concurrency: s.subscription.Concurrency,
		Poll:        s.driver.cfg.Poll,
		Logger:      s.driver.cfg.Logger,
	})
	out, err := reader.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	s.open = append(s.open, reader)
	s.driver.mu.Lock()
	s.driver.subscribers[reader] = s.subscription
	s.driver.mu.Unlock()
	return out, nil
}

// Drain implements bus.Subscriber.
func (s *subscriber) Drain(ctx context.Context) error {
	s.mu.Lock()
	open := slices.Clone(s.open)
	s.mu.Unlock()
	for _, reader := range open {
		if err := reader.Drain(ctx); err != nil {
			return fmt.Errorf("drain %s: %w", s.subscription.Consumer, err)
		}
	}
	return nil
}

// Close implements message.Subscriber.
func (s *subscriber) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, reader := range s.open {
		s.driver.mu.Lock()
		delete(s.driver.subscribers, reader)
		s.driver.mu.Unlock()
		_ = reader.Close()
	}
	s.open = nil
	return nil
}

// deliveries is what one consumer has to acknowledge, as keyed reads it.
type deliveries struct {
	pool     *pgxpool.Pool
	consumer string
}

// fetchQuery walks the primary key of entregas in its order. A row that is not
// due yet blocks the later ones of its key (entregas_aplazadas, mostly empty).
// A planner that knows little of the table, or knew it empty, would rather read
// and sort the whole backlog: neverSort, in the same transaction, and OFFSET 0,
// which keeps the look-up from becoming a join without order, forbid that.
const fetchQuery = `
SELECT e.posicion, e.carril, e.clave, m.id, m.cabeceras, m.carga
FROM entregas e JOIN mensajes m ON m.posicion = e.posicion
WHERE e.consumidor = $1 AND e.posicion > $2
  AND ($3::smallint[] IS NULL OR e.carril = ANY ($3))
  AND e.clave <> ALL ($4::text[]) AND e.posicion <> ALL ($6::bigint[])
  AND (e.no_antes IS NULL OR e.no_antes <= statement_timestamp())
  AND NOT EXISTS (SELECT FROM entregas d
                  WHERE d.consumidor = e.consumidor AND d.clave = e.clave AND d.posicion < e.posicion
                    AND d.no_antes > statement_timestamp()
                  OFFSET 0)
ORDER BY e.posicion
LIMIT $5`

const neverSort = `SELECT set_config('enable_sort', 'off', true)`

// Fetch implements keyed.Table.
func (t deliveries) Fetch(ctx context.Context, q keyed.Query) ([]keyed.Row, error) {
	b := &pgx.Batch{}
	b.Queue(neverSort)
	b.Queue(fetchQuery, t.consumer, q.After, q.Lanes, q.Exclude, q.Limit, q.Skip)
	results := t.pool.SendBatch(ctx, b)
	_, err := results.Exec()
	var list []keyed.Row
	if err == nil {
		rows, _ := results.Query() // CollectRows reports its error
		list, err = pgx.CollectRows(rows, delivery)
	}
	if err = errors.Join(err, results.Close()); err != nil {
		return nil, fmt.Errorf("fetch messages of %s: %w", t.consumer, err)
	}
	return list, nil
}

func delivery(row pgx.CollectableRow) (r keyed.Row, err error) {
	var (
		id                 string
		cabeceras, payload []byte
	)
	if err := row.Scan(&r.Position, &r.Lane, &r.Key, &id, &cabeceras, &payload); err != nil {
		return r, err
	}
	r.Message = message.NewMessage(id, payload)
	if json.Unmarshal(cabeceras, &r.Message.Metadata) != nil || r.Message.Metadata == nil {
		// Written by hand: one such row must not stop the consumer, and the
		// body says all that matters.
		r.Message.Metadata = message.Metadata{envelope.HeaderClave: r.Key}
	}
	return r, nil
}

const settleQuery = `DELETE FROM entregas WHERE consumidor = $1 AND posicion = ANY ($2)`

// Settle implements keyed.Table: the consumer has acknowledged the messages.
func (t deliveries) Settle(ctx context.Context, positions []int64) error {
	err := postgres.Relaxed(ctx, t.pool, settleQuery, t.consumer, positions)
	if err != nil {
		return fmt.Errorf("acknowledge %d messages of %s: %w", len(positions), t.consumer, err)
	}
	faults.Point(faults.BusAcknowledged)
	return nil
}

var errNoRefusal = errors.New("a consumer cannot refuse a message: it is dead-lettered and acknowledged")

// SetAside implements keyed.Table; consumers have dead letters instead.
func (deliveries) SetAside(context.Context, int64, string) error { return errNoRefusal }
