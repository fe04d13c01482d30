package outbox

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"km0/platform/envelope"
	"km0/platform/faults"
	"km0/platform/keyed"
	"km0/platform/postgres"
)

// table is the outbox as keyed reads it.
type table struct {
	pool   *pgxpool.Pool
	origen string
}

// fetchQuery walks the partial index outbox_pendientes in its order: neither
// the published rows nor the rest of the backlog are touched. A row that was
// set aside blocks the later ones of its key (outbox_apartados, mostly empty).
// OFFSET 0 keeps that a look-up per row: as a hash join it would have no order,
// and the whole backlog would be sorted.
const fetchQuery = `
SELECT posicion, carril, id::text, agregado_id, tipo, version, carga, topico, cabeceras, creado_en
FROM outbox o
WHERE publicado_en IS NULL AND apartado_en IS NULL AND posicion > $1
  AND ($2::smallint[] IS NULL OR carril = ANY ($2))
  AND agregado_id <> ALL ($3::text[]) AND posicion <> ALL ($5::bigint[])
  AND NOT EXISTS (SELECT FROM outbox a
                  WHERE a.agregado_id = o.agregado_id AND a.posicion < o.posicion
                    AND a.apartado_en IS NOT NULL AND a.publicado_en IS NULL
                  OFFSET 0)
ORDER BY posicion
LIMIT $4`

// Fetch implements keyed.Table.
func (t table) Fetch(ctx context.Context, q keyed.Query) ([]keyed.Row, error) {
	rows, err := t.pool.Query(ctx, fetchQuery, q.After, q.Lanes, q.Exclude, q.Limit, q.Skip)
	if err != nil {
		return nil, fmt.Errorf("fetch pending outbox rows: %w", err)
	}
	list, err := pgx.CollectRows(rows, t.row)
	if err != nil {
		return nil, fmt.Errorf("fetch pending outbox rows: %w", err)
	}
	return list, nil
}

func (t table) row(row pgx.CollectableRow) (keyed.Row, error) {
	var (
		r         keyed.Row
		e         envelope.Event
		topic     string
		carga     []byte // not a RawMessage: pgx would parse it
		cabeceras []byte
		creado    time.Time
	)
	err := row.Scan(&r.Position, &r.Lane, &e.ID, &r.Key, &e.Tipo, &e.Version, &carga, &topic, &cabeceras, &creado)
	if err != nil {
		return r, err
	}
	e.Datos, e.FechaMS, e.Origen = carga, creado.UnixMilli(), t.origen
	if r.Message, err = enveloped(topic, e, cabeceras); err != nil {
		// A row that somebody wrote by hand: refused, it stops no other key.
		r.Message = message.NewMessage(e.ID, nil)
		r.Message.Metadata.Set(envelope.HeaderMotivo, err.Error())
	}
	return r, nil
}

// enveloped makes of a row what the forwarder unwraps again. The wrapping is
// the forwarder's wire format, written out: through forwarder.Publisher every
// event would be decoded and encoded twice more. A test unwraps it with the
// forwarder.
func enveloped(topic string, e envelope.Event, cabeceras []byte) (*message.Message, error) {
	body, err := e.Encode()
	if err != nil {
		return nil, err
	}
	if !stringsOnly(cabeceras) {
		return nil, errors.New("cabeceras is no object of strings")
	}
	b := make([]byte, 0, base64.StdEncoding.EncodedLen(len(body))+len(cabeceras)+len(topic)+128)
	b = append(b, `{"destination_topic":`...)
	b = envelope.AppendString(b, topic)
	b = append(b, `,"uuid":`...)
	b = envelope.AppendString(b, e.ID)
	b = append(b, `,"payload":"`...)
	b = base64.StdEncoding.AppendEncode(b, body)
	b = append(b, `","metadata":`...)
	b = append(b, cabeceras...)
	return message.NewMessage(e.ID, append(b, '}')), nil
}

// stringsOnly tells whether valid JSON is an object whose values are strings:
// then there is nothing else outside of strings.
func stringsOnly(object []byte) bool {
	inString, opened := false, 0
	for i := 0; i < len(object); i++ {
		switch c := object[i]; {
		case c == '"':
			inString = !inString
		case inString && c == '\\':
			i++
		case inString, c == ',', c == ':', c == '}', c == ' ', c == '\t', c == '\n', c == '\r':
		case c == '{':
			opened++
		default:
			return false
		}
	}
	return opened == 1
}

// The conditions beside posicion make outbox_pendientes usable.
const (
	settleQuery = `
UPDATE outbox SET publicado_en = clock_timestamp()
WHERE posicion = ANY ($1) AND publicado_en IS NULL AND apartado_en IS NULL`

	setAsideQuery = `
UPDATE outbox SET apartado_en = clock_timestamp(), motivo = left($2, 1000)
WHERE posicion = $1 AND publicado_en IS NULL AND apartado_en IS NULL`
)

// Settle implements keyed.Table: the bus has confirmed the rows.
func (t table) Settle(ctx context.Context, positions []int64) error {
	err := postgres.Relaxed(ctx, t.pool, settleQuery, positions)
	if err != nil {
		return fmt.Errorf("mark %d outbox rows as published: %w", len(positions), err)
	}
	faults.Point(faults.RelayMarked)
	return nil
}

// SetAside implements keyed.Table.
func (t table) SetAside(ctx context.Context, position int64, reason string) error {
	_, err := t.pool.Exec(ctx, setAsideQuery, position, reason)
	if err != nil {
		return fmt.Errorf("set outbox row %d aside: %w", position, err)
	}
	return nil
}
