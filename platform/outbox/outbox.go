// Package outbox makes an event part of the transaction that caused it, and
// brings it to the bus afterwards.
//
// Write: Publish puts the event in the table outbox through the caller's
// transaction; both are committed, or neither. Killed before COMMIT, there is
// no event; killed after, the relay of any process finds it.
//
// Read: Relay hands pending rows to Watermill's forwarder, one event of a key
// at a time and many keys at once, and marks them after the bus has confirmed.
// Killed between the confirmation and the mark, the event goes out again under
// the same id, which the consumers' inbox absorbs.
//
// The order of the events of one key is that of their rows' posicion. It is
// the order of their transactions too, if each locks the aggregate's row
// before it publishes.
package outbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"km0/platform/envelope"
)

// MaxBytes is the default of Config.MaxBytes.
const MaxBytes = 512 << 10

// Event is what a module publishes.
type Event struct {
	ID         string // UUID; made by Publish when empty
	Agregado   string // 'pedido'
	AgregadoID string // 'P-2026-000123': the key
	Tipo       string // 'pedido.creado'
	Version    int    // from 1
	Topic      string // 'pedidos.eventos'
	Datos      any    // encoded as JSON; must give an object
	// Headers travel beside the envelope (traceparent, say); those that km0
	// sets itself win.
	Headers map[string]string
}

// Config of an Outbox.
type Config struct {
	Pool     *pgxpool.Pool // the module's database
	Origen   string        // the module's name, the envelope's origen
	MaxBytes int           // largest encoded Datos; 0 means MaxBytes
}

// Outbox is the outbox of one module. It is safe for concurrent use.
type Outbox struct {
	cfg  Config
	wake atomic.Pointer[func()]
}

// New needs no connection.
func New(cfg Config) *Outbox {
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = MaxBytes
	}
	return &Outbox{cfg: cfg}
}

// ErrTooLarge is wrapped when Datos exceeds the limit: refuse the request that
// caused the event.
var ErrTooLarge = errors.New("the event is too large")

// NewID makes the identifier of an event: a UUID of version 7, so that ids of
// neighbouring events are neighbours in the index.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// Publish writes events through into, in their order. With Tx they are written
// when it returns; with Batch, when the batch is sent. The transaction, and
// Wake after its COMMIT, are the caller's. All events are checked before the
// first is written: one that is incomplete, too large or no JSON object leaves
// no trace in the transaction.
func (o *Outbox) Publish(ctx context.Context, into Into, events ...Event) error {
	messages := make([]*message.Message, len(events))
	for i, e := range events {
		m, err := o.message(ctx, e)
		if err != nil {
			return fmt.Errorf("publish %s of %s %q: %w", e.Tipo, e.Agregado, e.AgregadoID, err)
		}
		messages[i] = m
	}
	publisher := o.publisher(ctx, into)
	for from, to := 0, 0; from < len(events); from = to {
		e := events[from]
		for to = from + 1; to < len(events) && events[to].Topic == e.Topic; {
			to++ // one statement for neighbours of one topic
		}
		if err := publisher.Publish(e.Topic, messages[from:to]...); err != nil {
			return fmt.Errorf("publish %s of %s %q: %w", e.Tipo, e.Agregado, e.AgregadoID, err)
		}
	}
	return nil
}

// headerAgregado travels in the message only up to the outbox row.
const headerAgregado = "agregado"

func (o *Outbox) message(ctx context.Context, e Event) (*message.Message, error) {
	if e.ID == "" {
		e.ID = NewID()
	} else if id, err := uuid.Parse(e.ID); err == nil {
		e.ID = id.String() // as the column gives it back
	} else {
		return nil, fmt.Errorf("id_evento %q is no UUID", e.ID)
	}
	if err := e.check(); err != nil {
		return nil, err
	}
	datos, err := json.Marshal(e.Datos)
	switch {
	case err != nil:
		return nil, fmt.Errorf("encode datos: %w", err)
	case len(datos) == 0 || datos[0] != '{':
		return nil, errors.New("datos must be an object")
	case len(datos) > o.cfg.MaxBytes:
		return nil, fmt.Errorf("%w: datos has %d bytes, at most %d are allowed", ErrTooLarge, len(datos), o.cfg.MaxBytes)
	case hasNUL(datos):
		return nil, errors.New("datos has a NUL character, which PostgreSQL cannot store")
	}
	m := message.NewMessage(e.ID, datos)
	m.Metadata = make(message.Metadata, len(e.Headers)+6)
	maps.Copy(m.Metadata, e.Headers)
	m.Metadata[envelope.HeaderIDEvento] = e.ID
	m.Metadata[envelope.HeaderTipo] = e.Tipo
	m.Metadata[envelope.HeaderVersion] = strconv.Itoa(e.Version)
	m.Metadata[envelope.HeaderClave] = e.AgregadoID
	m.Metadata[headerAgregado] = e.Agregado
	if id := envelope.Correlation(ctx); id != "" {
		m.Metadata[envelope.HeaderCorrelation] = id
	}
	remember(e.Topic, m)
	return m, nil
}

// maxName limits the texts of an event that are no data: it fits into an index
// entry and into what consumers accept.
const maxName = 200

func (e Event) check() error {
	for _, f := range []struct{ name, text string }{
		{"the aggregate", e.Agregado}, {"the aggregate's id", e.AgregadoID}, {"the type", e.Tipo}, {"the topic", e.Topic},
	} {
		switch {
		case f.text == "":
			return fmt.Errorf("%s is missing", f.name)
		case len(f.text) > maxName:
			return fmt.Errorf("%s has %d bytes, at most %d are allowed", f.name, len(f.text), maxName)
		case !utf8.ValidString(f.text) || strings.IndexByte(f.text, 0) >= 0:
			return fmt.Errorf("%s %q is no text that PostgreSQL can store", f.name, f.text)
		}
	}
	for _, c := range e.Topic {
		// What every bus accepts.
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("._-", c)) {
			return fmt.Errorf("the topic %q has the character %q: letters, digits, '.', '_' and '-' are allowed", e.Topic, c)
		}
	}
	if e.Version < 1 || e.Version > math.MaxInt32 {
		return fmt.Errorf("version %d, must be 1 or more", e.Version)
	}
	return nil
}

// hasNUL tells whether a JSON text has an escaped NUL, the one character jsonb
// refuses; an escaped backslash before "u0000" makes it plain text.
func hasNUL(text []byte) bool {
	for {
		i := bytes.Index(text, []byte(`\u0000`))
		if i < 0 {
			return false
		}
		backslashes := 0
		for i-backslashes > 0 && text[i-backslashes-1] == '\\' {
			backslashes++
		}
		if backslashes%2 == 0 {
			return true
		}
		text = text[i+1:]
	}
}

// Wake tells the relay of this process that something was committed. It
// returns at once, and does nothing where no relay runs.
func (o *Outbox) Wake() {
	if wake := o.wake.Load(); wake != nil {
		(*wake)()
	}
}
