// Package postgres is the bus over PostgreSQL: the log of every topic in one
// table, one row per message and consumer until it is acknowledged.
//
// Killed before the INSERT commits, nothing was published and the relay tries
// again. Killed between a consumer's commit and the DELETE of its row, the
// message is delivered again. A new subscription and a publication never miss
// each other: both take the topic's advisory lock.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"km0/platform/bus"
	"km0/platform/envelope"
	"km0/platform/keyed"
)

// MaxBytes is the default of Config.MaxBytes.
const MaxBytes = 1 << 20

// Config of the driver. Zero values mean the defaults named here.
type Config struct {
	Pool     *pgxpool.Pool // of the bus database, migrated
	Claims   *keyed.Claims // of the same database, running
	MaxBytes int           // largest payload; 1 MiB
	Timeout  time.Duration // of one statement of the publisher; 10 s
	Poll     time.Duration // how often subscribers look without being woken; 250 ms
	Logger   *slog.Logger  // nil discards
}

// Driver implements bus.Driver.
type Driver struct {
	cfg       Config
	publisher *publisher

	mu          sync.Mutex
	subscribers map[*keyed.Subscriber]bus.Subscription
}

var _ bus.Driver = (*Driver)(nil)

// Open starts the publisher's writers; it does not need the database yet.
func Open(cfg Config) (*Driver, error) {
	if cfg.Pool == nil || cfg.Claims == nil {
		return nil, errors.New("open the postgres bus: a pool and claims on its database are needed")
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = MaxBytes
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = publishTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Driver{cfg: cfg, subscribers: map[*keyed.Subscriber]bus.Subscription{}}
	var err error
	d.publisher, err = newPublisher(cfg, d.published)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Publisher implements bus.Driver. Topics need not be declared: what nobody
// subscribed to yet is kept for those who will.
func (d *Driver) Publisher() message.Publisher { return d.publisher }

// published wakes the subscribers that got one of messages, here and elsewhere.
func (d *Driver) published(topic string, messages []*message.Message) {
	d.mu.Lock()
	for reader, s := range d.subscribers {
		if s.Topic == topic && slices.ContainsFunc(messages, func(m *message.Message) bool {
			tipo := m.Metadata.Get(envelope.HeaderTipo)
			return s.Types == nil || tipo == "" || slices.Contains(s.Types, tipo)
		}) {
			reader.Wake()
		}
	}
	d.mu.Unlock()
	d.cfg.Claims.Notify(topic)
}

// Declare implements bus.Driver. A subscription that exists with another topic
// is an error: its waiting messages would change their meaning.
func (d *Driver) Declare(ctx context.Context, t bus.Topology) error {
	for _, s := range t.Subscriptions {
		if err := d.declare(ctx, s); err != nil {
			return fmt.Errorf("declare the subscription of %s to %s: %w", s.Consumer, s.Topic, err)
		}
	}
	return nil
}

func (d *Driver) declare(ctx context.Context, s bus.Subscription) error {
	if s.Consumer == "" || s.Topic == "" {
		return errors.New("a subscription needs a consumer and a topic")
	}
	known, err := subscribed(ctx, d.cfg.Pool, s)
	switch {
	case err != nil:
		return err
	case known:
		return pgx.BeginFunc(ctx, d.cfg.Pool, func(tx pgx.Tx) error {
			if err := lockTopic(ctx, tx, s.Topic); err != nil {
				return err
			}
			return widen(ctx, tx, s)
		})
	}
	return pgx.BeginFunc(ctx, d.cfg.Pool, func(tx pgx.Tx) error {
		// The log may be long: the back-fill takes the time it takes.
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = 0`); err != nil {
			return err
		}
		// Purge must not remove what the back-fill points to.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock_shared($1, 0)`, purgeLock); err != nil {
			return err
		}
		if err := lockTopic(ctx, tx, s.Topic); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO suscripciones (consumidor, topico, tipos) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`, s.Consumer, s.Topic, s.Types)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 { // another process was faster
			if _, err := subscribed(ctx, tx, s); err != nil {
				return err
			}
			return widen(ctx, tx, s)
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO entregas (consumidor, posicion, carril, clave, no_antes)
			SELECT $1, posicion, carril, clave, no_antes FROM mensajes
			WHERE topico = $2 AND ($3::text[] IS NULL OR tipo = '' OR tipo = ANY ($3))`, s.Consumer, s.Topic, s.Types)
		return err
	})
}

// lockTopic waits for publications under way; later ones see what the
// transaction changes.
func lockTopic(ctx context.Context, tx pgx.Tx, topic string) error {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1, hashtext($2))`, topicLock, topic)
	return err
}

// widen adds types to a subscription. Types are never taken away: the process
// that handles them may be a newer one that runs beside this one. What was
// published before is not delivered again for a type that is new.
func widen(ctx context.Context, tx pgx.Tx, s bus.Subscription) error {
	_, err := tx.Exec(ctx, `
		UPDATE suscripciones SET tipos = CASE WHEN $2::text[] IS NULL THEN NULL ELSE
			ARRAY (SELECT unnest(tipos) UNION SELECT unnest($2::text[])) END
		WHERE consumidor = $1 AND tipos IS NOT NULL AND ($2::text[] IS NULL OR NOT tipos @> $2::text[])`, s.Consumer, s.Types)
	return err
}

// subscribed tells whether the subscription exists; with another topic it is
// an error.
func subscribed(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, s bus.Subscription) (bool, error) {
	topic := ""
	err := db.QueryRow(ctx, `SELECT topico FROM suscripciones WHERE consumidor = $1`, s.Consumer).Scan(&topic)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, err
	case topic != s.Topic:
		return false, fmt.Errorf("it reads %s already: give the consumer another name, or remove its rows from suscripciones and entregas", topic)
	}
	return true, nil
}

// topicLock is the first half of the advisory lock of a topic, purgeLock that
// of the one between Purge and back-fills.
const (
	topicLock int32 = 0x746f7069
	purgeLock int32 = 0x70757267
)

// Lag implements bus.Driver.
func (d *Driver) Lag(ctx context.Context) (map[string]bus.Lag, error) {
	rows, err := d.cfg.Pool.Query(ctx, `
		SELECT s.consumidor, e.n, greatest(0, extract(epoch FROM clock_timestamp() - m.publicado_en))::float8
		FROM suscripciones s
		CROSS JOIN LATERAL (SELECT count(*) n, min(posicion) oldest FROM entregas e WHERE e.consumidor = s.consumidor) e
		LEFT JOIN mensajes m ON m.posicion = e.oldest`)
	if err != nil {
		return nil, fmt.Errorf("lag of the consumers: %w", err)
	}
	lags := map[string]bus.Lag{}
	var (
		consumer string
		n        int64
		oldest   *float64
	)
	_, err = pgx.ForEachRow(rows, []any{&consumer, &n, &oldest}, func() error {
		l := bus.Lag{Messages: n}
		if oldest != nil {
			l.OldestSeconds = *oldest
		}
		lags[consumer] = l
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("lag of the consumers: %w", err)
	}
	return lags, nil
}

// Close ends the writers; Publish fails afterwards.
func (d *Driver) Close() error {
	d.publisher.stop()
	return nil
}
