package postgres

import (
	"context"
	stdsql "database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"km0/platform/bus"
	"km0/platform/envelope"
	"km0/platform/keyed"
)

const (
	writers        = 2                // statements under way at once
	batchMost      = 1000             // messages a statement
	batchBytes     = 4 << 20          // payload a statement
	publishTimeout = 10 * time.Second // default of Config.Timeout
)

var errClosed = errors.New("the bus is closed")

// publisher merges concurrent calls of Publish into one INSERT: while one
// statement runs, the calls that arrive gather for the next.
type publisher struct {
	cfg       Config
	inner     *wsql.Publisher
	published func(topic string, messages []*message.Message)
	done      sync.WaitGroup
	arrived   chan struct{} // waiting has grown; closed by stop

	mu      sync.Mutex
	waiting []*call
	closed  bool
}

type call struct {
	topic    string
	messages []*message.Message
	bytes    int
	result   chan error
}

func newPublisher(cfg Config, published func(string, []*message.Message)) (*publisher, error) {
	inner, err := wsql.NewPublisher(executor{cfg.Pool, cfg.Timeout}, wsql.PublisherConfig{SchemaAdapter: schema{}}, nil)
	if err != nil {
		return nil, fmt.Errorf("publisher of the postgres bus: %w", err)
	}
	p := &publisher{cfg: cfg, inner: inner, published: published, arrived: make(chan struct{}, writers)}
	for range writers {
		p.done.Go(p.write)
	}
	return p, nil
}

// Publish returns after COMMIT; a call is published as a whole or not at all,
// its messages in their order. A payload above the limit, or data the server
// does not take, is bus.ErrRefused. Any other error means that the messages
// may have been published or not. It gives up when it has waited Config.Timeout
// for a writer, and after as much of the server's silence.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	c := &call{topic: topic, messages: messages, result: make(chan error, 1)}
	for _, m := range messages {
		if len(m.Payload) > p.cfg.MaxBytes {
			return bus.Refused(fmt.Errorf("message %s has %d bytes, at most %d are allowed", m.UUID, len(m.Payload), p.cfg.MaxBytes))
		}
		if _, err := dueTime(m); err != nil {
			return bus.Refused(err)
		}
		c.bytes += len(m.Payload)
	}
	if !p.enqueue(c) {
		return errClosed
	}
	timer := time.NewTimer(p.cfg.Timeout)
	defer timer.Stop()
	select {
	case err := <-c.result:
		return err
	case <-timer.C:
	}
	if p.withdraw(c) {
		return fmt.Errorf("publish to %s: no writer was free within %s, the database is slow or away", topic, p.cfg.Timeout)
	}
	return <-c.result // its statement is under way, and has a limit of its own
}

// Close does nothing: publishers are shared, the driver ends them.
func (p *publisher) Close() error { return nil }

func (p *publisher) enqueue(c *call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.waiting = append(p.waiting, c)
	select {
	case p.arrived <- struct{}{}:
	default: // every writer has a signal already
	}
	return true
}

// withdraw takes back a call that no writer has taken: published later, after
// its caller has tried again, it would be a needless duplicate.
func (p *publisher) withdraw(c *call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.waiting, c)
	if i < 0 {
		return false
	}
	p.waiting = slices.Delete(p.waiting, i, i+1)
	return true
}

// stop lets the statements under way finish and answers all other calls.
func (p *publisher) stop() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.arrived)
	}
	for _, c := range p.waiting {
		c.result <- errClosed
	}
	p.waiting = nil
	p.mu.Unlock()
	p.done.Wait()
}

func (p *publisher) write() {
	for range p.arrived {
		for batch := p.take(); len(batch) > 0; batch = p.take() {
			p.send(batch)
		}
	}
}

// take returns the oldest call and what fits beside it of the same topic.
func (p *publisher) take() (batch []*call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, size, full := 0, 0, false
	rest := p.waiting[:0]
	for _, c := range p.waiting {
		first := len(batch) == 0
		if !first && (full || c.topic != batch[0].topic) {
			rest = append(rest, c)
			continue
		}
		if full = !first && (n+len(c.messages) > batchMost || size+c.bytes > batchBytes); full {
			rest = append(rest, c)
			continue
		}
		batch = append(batch, c)
		n, size = n+len(c.messages), size+c.bytes
	}
	clear(p.waiting[len(rest):])
	p.waiting = rest
	return batch
}

// send publishes a batch; if the server refuses it, call by call, so that a
// bad message hurts only itself.
func (p *publisher) send(batch []*call) {
	topic := batch[0].topic
	var all []*message.Message
	for _, c := range batch {
		all = append(all, c.messages...)
	}
	err := refusal(p.inner.Publish(topic, all...))
	if len(batch) > 1 && errors.Is(err, bus.ErrRefused) {
		for _, c := range batch {
			p.send([]*call{c})
		}
		return
	}
	if err == nil {
		p.published(topic, all)
	}
	for _, c := range batch {
		c.result <- err
	}
}

// refusal marks errors that come from the data: SQLSTATE classes 22 and 23
// (data, integrity), 54 (program limit), and names watermill-sql refuses.
func refusal(err error) error {
	if err == nil {
		return nil
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && len(pg.Code) == 5 {
		switch pg.Code[:2] {
		case "22", "23", "54":
			return bus.Refused(err)
		}
	}
	if errors.Is(err, wsql.ErrInvalidTopicName) {
		return bus.Refused(err)
	}
	return err
}

// schema maps messages onto the log. Only InsertQuery is ever called.
type schema struct{ wsql.SchemaAdapter }

const publishQuery = `
WITH nuevos AS (
	INSERT INTO mensajes (topico, id, tipo, clave, carril, cabeceras, carga, no_antes)
	SELECT $1, id, tipo, clave, carril, cabeceras, carga, no_antes
	FROM unnest($2::text[], $3::text[], $4::text[], $5::smallint[], $6::json[], $7::bytea[], $8::timestamptz[])
	     WITH ORDINALITY AS m (id, tipo, clave, carril, cabeceras, carga, no_antes, n)
	ORDER BY n
	RETURNING posicion, tipo, clave, carril, no_antes)
INSERT INTO entregas (consumidor, posicion, clave, carril, no_antes)
SELECT s.consumidor, n.posicion, n.clave, n.carril, n.no_antes
FROM nuevos n, suscripciones s
WHERE s.topico = $1 AND (s.tipos IS NULL OR n.tipo = '' OR n.tipo = ANY (s.tipos))`

// dueTime is when a message may be delivered at the earliest, nil for at once.
func dueTime(m *message.Message) (*time.Time, error) {
	header := m.Metadata.Get(envelope.HeaderNoAntes)
	if header == "" {
		return nil, nil
	}
	due, err := time.Parse(time.RFC3339, header)
	if err != nil {
		return nil, fmt.Errorf("header %s of message %s: %w", envelope.HeaderNoAntes, m.UUID, err)
	}
	return &due, nil
}

func (schema) InsertQuery(topic string, messages message.Messages) (wsql.Query, error) {
	n := len(messages)
	ids, tipos, claves, carriles := make([]string, n), make([]string, n), make([]string, n), make([]int16, n)
	cabeceras, cargas, plazos := make([]string, n), make([][]byte, n), make([]*time.Time, n)
	for i, m := range messages {
		headers := []byte("{}")
		var err error
		if m.Metadata != nil {
			if headers, err = json.Marshal(m.Metadata); err != nil {
				return wsql.Query{}, fmt.Errorf("encode the headers of message %s: %w", m.UUID, err)
			}
		}
		if plazos[i], err = dueTime(m); err != nil {
			return wsql.Query{}, err
		}
		ids[i], tipos[i], claves[i] = m.UUID, m.Metadata.Get(envelope.HeaderTipo), m.Metadata.Get(envelope.HeaderClave)
		if claves[i] == "" {
			claves[i] = m.UUID // no key, no order: each message is a key of its own
		}
		carriles[i] = keyed.Lane(claves[i])
		cabeceras[i], cargas[i] = string(headers), m.Payload
		if cargas[i] == nil {
			cargas[i] = []byte{}
		}
	}
	return wsql.Query{Query: publishQuery, Args: []any{topic, ids, tipos, claves, carriles, cabeceras, cargas, plazos}}, nil
}

// executor runs the INSERT behind the topic's shared lock, in one round trip
// and one implicit transaction. The lock is a statement of its own: the
// INSERT's snapshot must be taken after it, to see a subscription that
// committed while it waited.
type executor struct {
	pool    *pgxpool.Pool
	timeout time.Duration
}

func (e executor) ExecContext(ctx context.Context, query string, args ...any) (stdsql.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	b := &pgx.Batch{}
	b.Queue(`SELECT pg_advisory_xact_lock_shared($1, hashtext($2))`, topicLock, args[0])
	b.Queue(query, args...)
	return nil, e.pool.SendBatch(ctx, b).Close()
}

var errOnlyExec = errors.New("the bus publisher only executes statements")

func (e executor) Exec(query string, args ...any) (stdsql.Result, error) {
	return e.ExecContext(context.Background(), query, args...)
}
func (executor) Query(string, ...any) (*stdsql.Rows, error) { return nil, errOnlyExec }
func (executor) QueryRow(string, ...any) *stdsql.Row        { return nil }
func (executor) QueryContext(context.Context, string, ...any) (*stdsql.Rows, error) {
	return nil, errOnlyExec
}
func (executor) QueryRowContext(context.Context, string, ...any) *stdsql.Row { return nil }
