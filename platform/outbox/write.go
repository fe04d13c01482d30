package outbox

import (
	"context"
	stdsql "database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"km0/platform/envelope"
	"km0/platform/keyed"
)

// Into is where the rows go: Tx or Batch.
type Into interface {
	exec(ctx context.Context, statement string, args []any) error
}

type intoTx struct{ tx pgx.Tx }

type intoBatch struct{ batch *pgx.Batch }

// Tx writes now, in the transaction.
func Tx(tx pgx.Tx) Into { return intoTx{tx} }

// Batch queues behind what the caller queued: an order and its events go in
// one round trip, and in one implicit transaction if the batch is sent by a
// pool or a connection.
func Batch(b *pgx.Batch) Into { return intoBatch{b} }

func (i intoTx) exec(ctx context.Context, statement string, args []any) error {
	_, err := i.tx.Exec(ctx, statement, args...)
	return err
}

func (i intoBatch) exec(_ context.Context, statement string, args []any) error {
	i.batch.Queue(statement, args...)
	return nil
}

// Publisher is the same as Publish for those who have Watermill messages: it
// writes each into the outbox, for the topic given to Publish. The messages
// need the headers clave, tipo, version and agregado, an UUID as identifier
// and a JSON object as payload.
func (o *Outbox) Publisher(into Into) message.Publisher {
	return o.publisher(context.Background(), into)
}

func (o *Outbox) publisher(ctx context.Context, into Into) message.Publisher {
	inner, err := wsql.NewPublisher(executor{ctx, into}, wsql.PublisherConfig{SchemaAdapter: schema{}}, nil)
	if err != nil {
		return failing{err}
	}
	return forwarder.NewPublisher(inner, forwarder.PublisherConfig{ForwarderTopic: "outbox"})
}

type failing struct{ err error }

func (f failing) Publish(string, ...*message.Message) error { return f.err }
func (f failing) Close() error                              { return nil }

// schema maps the forwarder's envelopes onto the columns of the outbox. Only
// InsertQuery is ever called: km0 does not read with watermill-sql.
type schema struct{ wsql.SchemaAdapter }

const insertQuery = `
INSERT INTO outbox (id, agregado, agregado_id, tipo, version, carga, topico, cabeceras, carril)
SELECT id, agregado, clave, tipo, version, carga, topico, cabeceras, carril
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::int[], $6::jsonb[], $7::text[], $8::json[], $9::smallint[])
     WITH ORDINALITY AS e (id, agregado, clave, tipo, version, carga, topico, cabeceras, carril, n)
ORDER BY n`

const insertOne = `
INSERT INTO outbox (id, agregado, agregado_id, tipo, version, carga, topico, cabeceras, carril)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`

func (schema) InsertQuery(_ string, messages message.Messages) (wsql.Query, error) {
	n := len(messages)
	var (
		ids, agregados, claves = make([]string, n), make([]string, n), make([]string, n)
		tipos, topicos         = make([]string, n), make([]string, n)
		versiones, carriles    = make([]int32, n), make([]int16, n)
		cargas, cabeceras      = make([]string, n), make([]string, n)
	)
	for i, m := range messages {
		w, err := unwrap(m)
		if err != nil {
			return wsql.Query{}, err
		}
		version, err := strconv.ParseInt(w.Metadata[envelope.HeaderVersion], 10, 32)
		if err != nil {
			return wsql.Query{}, fmt.Errorf("header %s of message %s: %w", envelope.HeaderVersion, w.UUID, err)
		}
		ids[i], topicos[i], cargas[i] = w.UUID, w.Topic, string(w.Payload)
		agregados[i], claves[i] = w.Metadata[headerAgregado], w.Metadata[envelope.HeaderClave]
		tipos[i], versiones[i] = w.Metadata[envelope.HeaderTipo], int32(version)
		carriles[i] = keyed.Lane(claves[i])
		delete(w.Metadata, headerAgregado)
		headers, err := json.Marshal(w.Metadata)
		if err != nil {
			return wsql.Query{}, fmt.Errorf("encode the headers of message %s: %w", w.UUID, err)
		}
		cabeceras[i] = string(headers)
	}
	if n == 1 { // most calls: no arrays, no sort
		return wsql.Query{
			Query: insertOne,
			Args:  []any{ids[0], agregados[0], claves[0], tipos[0], versiones[0], cargas[0], topicos[0], cabeceras[0], carriles[0]},
		}, nil
	}
	return wsql.Query{
		Query: insertQuery,
		Args:  []any{ids, agregados, claves, tipos, versiones, cargas, topicos, cabeceras, carriles},
	}, nil
}

// wrapped is what forwarder.Publisher puts into a payload.
type wrapped struct {
	Topic    string            `json:"destination_topic"`
	UUID     string            `json:"uuid"`
	Payload  []byte            `json:"payload"`
	Metadata map[string]string `json:"metadata"`
}

type contentKey struct{}

// remember puts what the forwarder is about to wrap into the context, which
// its envelope passes on: decoding again what this call has just encoded would
// be half the cost of an event.
func remember(topic string, m *message.Message) {
	m.SetContext(context.WithValue(m.Context(), contentKey{}, wrapped{topic, m.UUID, m.Payload, m.Metadata}))
}

func unwrap(m *message.Message) (w wrapped, err error) {
	if w, ok := m.Context().Value(contentKey{}).(wrapped); ok {
		return w, nil
	}
	if err := json.Unmarshal(m.Payload, &w); err != nil {
		return w, fmt.Errorf("unwrap the forwarder's envelope: %w", err)
	}
	return w, nil
}

// executor is the database as watermill-sql's publisher sees it. It runs under
// the caller's context: the publisher passes context.Background().
type executor struct {
	ctx  context.Context
	into Into
}

var errOnlyExec = errors.New("the outbox writer only executes statements")

func (e executor) ExecContext(_ context.Context, query string, args ...any) (stdsql.Result, error) {
	return nil, e.into.exec(e.ctx, query, args)
}

func (e executor) Exec(query string, args ...any) (stdsql.Result, error) {
	return nil, e.into.exec(e.ctx, query, args)
}

func (e executor) Query(string, ...any) (*stdsql.Rows, error) { return nil, errOnlyExec }
func (e executor) QueryRow(string, ...any) *stdsql.Row        { return nil }
func (e executor) QueryContext(context.Context, string, ...any) (*stdsql.Rows, error) {
	return nil, errOnlyExec
}
func (e executor) QueryRowContext(context.Context, string, ...any) *stdsql.Row { return nil }
