// Package deadletter keeps what could not be processed, byte for byte, with
// the reason: in the consumer's own database, where a person can look at it.
//
// Store commits before the message is acknowledged. Killed in between, the
// message comes back, fails again and is stored again, which changes nothing.
package deadletter

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"km0/platform/faults"
	"km0/platform/inbox"
)

// Class says what kind of failure made a dead letter.
type Class string

// The classes, as they stand in mensajes_muertos.clase.
const (
	Datos              Class = "datos"               // the message cannot be read or holds impossible values
	Contrato           Class = "contrato"            // readable, but not under a contract the consumer knows
	Negocio            Class = "negocio"             // understood, and refused by a business rule
	TransitorioAgotado Class = "transitorio_agotado" // kept failing with errors that could have passed
	Fallo              Class = "fallo"               // a panic, or an error nobody classified: our bug
)

const (
	reasonRunes = 200
	errorBytes  = 64 << 10
	columnBytes = 1000 // an index row holds about 2700
)

// Letter is one message that one consumer gave up. Reason and Class are safe
// to print; the other texts are as they came, for Printable to make so.
type Letter struct {
	ID          int64 // of the archive
	Consumer    string
	MessageID   string
	Topic       string
	Key         string
	Tipo        string
	Class       Class
	Reason      string // short; made printable, and of Error if it is empty
	Error       string
	Attempts    int
	Headers     map[string]string
	Body        []byte
	Fingerprint []byte
	At          time.Time // by the database's clock
}

// Archive is the table mensajes_muertos of one module's database. It is safe
// for concurrent use.
type Archive struct{ Pool *pgxpool.Pool }

// Store keeps l. Storing the same letter again changes nothing.
func (a Archive) Store(ctx context.Context, l Letter) error {
	return a.commit(ctx, l, func(tx pgx.Tx) error { return insert(ctx, tx, l) })
}

// StoreRejection keeps l as the trace of a business rule's no, and in the same
// transaction records the message as processed and runs then, which may be
// nil: a rejection happens once, with its event, or not yet. It reports false
// if an earlier delivery did all that.
func (a Archive) StoreRejection(ctx context.Context, l Letter, then func(context.Context, pgx.Tx) error) (first bool, err error) {
	err = a.commit(ctx, l, func(tx pgx.Tx) error {
		duplicate, err := inbox.Record(ctx, tx, l.Consumer, l.MessageID, l.Fingerprint)
		if err != nil || duplicate {
			return err
		}
		first = true
		if err := insert(ctx, tx, l); err != nil || then == nil {
			return err
		}
		return then(ctx, tx)
	})
	return first && err == nil, err
}

func (a Archive) commit(ctx context.Context, l Letter, write func(pgx.Tx) error) error {
	if err := pgx.BeginFunc(ctx, a.Pool, write); err != nil {
		return fmt.Errorf("archive message %s of %s: %w", Printable(l.MessageID), l.Consumer, err)
	}
	faults.Point(faults.DeadLetterStored)
	return nil
}

func insert(ctx context.Context, tx pgx.Tx, l Letter) error {
	headers, err := encodeHeaders(l.Headers)
	if err != nil {
		return err
	}
	body := l.Body
	if body == nil {
		body = []byte{}
	}
	reason := l.Reason
	if reason == "" {
		reason = l.Error
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO mensajes_muertos
			(consumidor, id_mensaje, topico, clave, tipo, clase, motivo, error, intentos, cabeceras, carga, huella)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
		ON CONFLICT (consumidor, id_mensaje, huella) DO NOTHING`,
		l.Consumer, column(l.MessageID), l.Topic, column(l.Key), column(l.Tipo), l.Class,
		Reason(reason), storable(l.Error), l.Attempts, headers, body, l.Fingerprint)
	return err
}

// text says whether PostgreSQL takes s as TEXT.
func text(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// column is s, so that it can be compared with the inbox and the event, or its
// escaped form if PostgreSQL would not take it or would not index it.
func column(s string) string {
	if !text(s) {
		s = Printable(s)
	}
	if len(s) > columnBytes {
		sum := sha256.Sum256([]byte(s))
		s = strings.ToValidUTF8(s[:columnBytes-70], "") + "…" + hex.EncodeToString(sum[:])
	}
	return s
}

// Reason is the first line of an error, short and safe to print.
func Reason(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	line = Printable(line)
	if utf8.RuneCountInString(line) > reasonRunes {
		line = string([]rune(line)[:reasonRunes-1]) + "…"
	}
	return line
}

// Printable escapes what a terminal or the database would not take as text:
// control characters, direction marks and bytes that are no UTF-8.
func Printable(s string) string {
	safe := func(r rune) bool { return r != utf8.RuneError && unicode.IsPrint(r) }
	if utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !safe(r) }) < 0 {
		return s
	}
	quoted := strconv.Quote(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// storable keeps an error's lines but nothing TEXT refuses.
func storable(s string) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", `\x00`), "\uFFFD")
	if len(s) > errorBytes {
		s = strings.ToValidUTF8(s[:errorBytes], "")
	}
	return s
}

// encodeHeaders keeps any bytes: a value that is no TEXT becomes
// {"base64": "..."}; such a name, or one that begins with a quote, is quoted.
func encodeHeaders(headers map[string]string) ([]byte, error) {
	out := make(map[string]any, len(headers))
	for name, value := range headers {
		if !text(name) || strings.HasPrefix(name, `"`) {
			name = strconv.QuoteToASCII(name)
		}
		if text(value) {
			out[name] = value
		} else {
			out[name] = map[string]string{"base64": base64.StdEncoding.EncodeToString([]byte(value))}
		}
	}
	encoded, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encode headers: %w", err)
	}
	return encoded, nil
}
