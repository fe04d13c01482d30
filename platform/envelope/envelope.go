// Package envelope is the one form in which events travel: the lesson's
// envelope as the body, a few headers beside it.
//
// The identifier of an event is made once, when the event is written to the
// outbox, and never again: every retry, redelivery and republication carries
// the same one, and that is what makes idempotent consumers possible.
package envelope

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// Headers (Watermill metadata) that travel beside the body.
const (
	HeaderIDEvento    = "id_evento"
	HeaderTipo        = "tipo"
	HeaderVersion     = "version"
	HeaderClave       = "clave"          // the key: events of one key keep their order
	HeaderCorrelation = "correlation_id" // from the request that started it all
	HeaderTraceparent = "traceparent"    // W3C trace context
	HeaderIntentos    = "intentos"       // attempts so far
	HeaderNoAntes     = "no_antes"       // do not process before (RFC 3339)
	HeaderUltimoError = "ultimo_error"   // the failure of the last attempt
	HeaderMotivo      = "motivo"         // why it is a dead letter
)

// ErrMalformed is wrapped by every error of Decode: the bytes are no envelope
// and never will be.
var ErrMalformed = errors.New("malformed envelope")

// Event is the lesson's envelope. Datos stays raw: numbers keep every digit.
type Event struct {
	ID      string          `json:"id_evento"`
	Tipo    string          `json:"tipo"`
	Version int             `json:"version"`
	FechaMS int64           `json:"fecha_ms"` // milliseconds since 1970 UTC, of the outbox row
	Origen  string          `json:"origen"`   // the module that published it
	Datos   json.RawMessage `json:"datos"`
}

// Encode gives the bytes that go to the bus; equal events give equal bytes,
// and Datos is in them as it is. It fails only if Datos is not JSON.
func (e Event) Encode() ([]byte, error) {
	if !json.Valid(e.Datos) {
		return nil, fmt.Errorf("encode event %s: datos is not JSON", e.ID)
	}
	b := make([]byte, 0, len(e.Datos)+len(e.ID)+len(e.Tipo)+len(e.Origen)+128)
	b = append(b, `{"id_evento":`...)
	b = AppendString(b, e.ID)
	b = append(b, `,"tipo":`...)
	b = AppendString(b, e.Tipo)
	b = append(b, `,"version":`...)
	b = strconv.AppendInt(b, int64(e.Version), 10)
	b = append(b, `,"fecha_ms":`...)
	b = strconv.AppendInt(b, e.FechaMS, 10)
	b = append(b, `,"origen":`...)
	b = AppendString(b, e.Origen)
	b = append(b, `,"datos":`...)
	b = append(b, e.Datos...)
	return append(b, '}'), nil
}

// AppendString appends s as a JSON string. Names and ids need no escapes: what
// does is left to encoding/json. The relay encodes every event, and by
// reflection that is a third of its work.
func AppendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // a string always encodes
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// Decode reads an envelope and checks what every consumer relies on: an id, a
// type, a version from 1 and an object in datos. Unknown fields are ignored,
// as the evolution of contracts demands.
func Decode(body []byte) (Event, error) {
	var e Event
	if err := json.Unmarshal(body, &e); err != nil {
		return Event{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	switch datos := bytes.TrimSpace(e.Datos); {
	case e.ID == "" || len(e.ID) > 200:
		return Event{}, fmt.Errorf("%w: id_evento must have 1 to 200 characters", ErrMalformed)
	case e.Tipo == "" || len(e.Tipo) > 200:
		return Event{}, fmt.Errorf("%w: tipo must have 1 to 200 characters", ErrMalformed)
	case e.Version < 1:
		return Event{}, fmt.Errorf("%w: version %d, must be 1 or more", ErrMalformed, e.Version)
	case len(datos) == 0 || datos[0] != '{':
		return Event{}, fmt.Errorf("%w: datos must be an object", ErrMalformed)
	}
	return e, nil
}

// Fingerprint identifies the content of an event apart from its id: two
// deliveries of one event have the same, whatever the headers.
func (e Event) Fingerprint() []byte {
	h := sha256.New()
	h.Write([]byte(e.Tipo))
	h.Write([]byte{0})
	h.Write(strconv.AppendInt(nil, int64(e.Version), 10))
	h.Write([]byte{0})
	h.Write(e.Datos)
	return h.Sum(nil)
}
