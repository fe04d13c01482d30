// Package consumer makes a message's effect happen once: in one transaction
// with the record that it was processed, whoever is killed, however often the
// message comes.
//
// Killed before COMMIT, nothing happened and the message comes back. Killed
// after COMMIT and before the acknowledgement, the message comes back and the
// inbox says it is a duplicate. A message that cannot be processed becomes a
// dead letter and the next ones go on.
package consumer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"km0/platform/envelope"
)

// Handler applies one event inside the effect's transaction. What it writes
// through tx is committed together with the inbox row, or not at all. It must
// not commit, keep tx, or acknowledge.
type Handler func(ctx context.Context, tx pgx.Tx, e envelope.Event) error

// Consumer is declared by a module; everything in Settings can be changed by
// configuration.
type Consumer struct {
	Name     string             // 'inventario.descuento_stock': inbox, dead letters, metrics and configuration use it
	Topic    string             // 'pedidos.eventos'
	Handlers map[string]Handler // by tipo; other types are acknowledged and counted as ignored
	Settings Settings           // defaults of this consumer
}

// Settings of one consumer. Zero values mean the value of Defaults.
type Settings struct {
	Concurrency    int            `yaml:"concurrency"` // most messages in flight in one process
	Retry          Retry          `yaml:"retry"`
	Timeout        time.Duration  `yaml:"timeout"`         // of one attempt
	Batch          Batch          `yaml:"batch"`           // opt-in
	Throttle       Throttle       `yaml:"throttle"`        // opt-in
	CircuitBreaker CircuitBreaker `yaml:"circuit_breaker"` // opt-in
}

// Retry is the short, blocking kind: the message keeps its place and its key
// waits behind it; other keys go on.
type Retry struct {
	Attempts   int           `yaml:"attempts"` // in all, the first included
	Initial    time.Duration `yaml:"initial"`  // wait after the first failure
	Max        time.Duration `yaml:"max"`      // longest wait
	Multiplier float64       `yaml:"multiplier"`
	Jitter     float64       `yaml:"jitter"` // 0.2: each wait varies by up to 20 %
}

// Batch lets several messages in flight share one transaction.
type Batch struct {
	Size int           `yaml:"size"` // most messages a transaction; below 2 means off
	Wait time.Duration `yaml:"wait"` // longest wait for more of them
}

// Throttle lets Count messages start per Per.
type Throttle struct {
	Count int64         `yaml:"count"` // 0 means off
	Per   time.Duration `yaml:"per"`
}

// CircuitBreaker stops calling a handler that fails again and again.
type CircuitBreaker struct {
	Failures uint32        `yaml:"failures"` // consecutive failures that open it; 0 means off
	Open     time.Duration `yaml:"open"`     // how long it stays open before one trial
}

// Defaults are the settings of a consumer that sets nothing.
func Defaults() Settings {
	return Settings{
		Concurrency: 16,
		Retry:       Retry{Attempts: 4, Initial: time.Second, Max: 4 * time.Second, Multiplier: 2, Jitter: 0.2},
		Timeout:     10 * time.Second,
	}
}

// On makes a Handler of a function over the event's own type. Data that does
// not decode into T is a dead letter of class contrato, and so is a version
// that is not listed. If T has a method Validate() error, its error is a dead
// letter of class datos.
func On[T any](versions []int, apply func(ctx context.Context, tx pgx.Tx, e envelope.Event, datos T) error) Handler {
	return func(ctx context.Context, tx pgx.Tx, e envelope.Event) error {
		if !accepts(versions, e.Version) {
			return Contract(fmt.Errorf("%s version %d is not supported, only %v", e.Tipo, e.Version, versions))
		}
		var datos T
		dec := json.NewDecoder(bytes.NewReader(e.Datos))
		if err := dec.Decode(&datos); err != nil {
			return Contract(fmt.Errorf("decode datos of %s version %d: %w", e.Tipo, e.Version, err))
		}
		if err := validate(&datos); err != nil {
			return Permanent(fmt.Errorf("datos of %s: %w", e.Tipo, err))
		}
		return apply(ctx, tx, e, datos)
	}
}

// validate finds the method on T and on *T.
func validate[T any](datos *T) error {
	type validator interface{ Validate() error }
	if v, ok := any(datos).(validator); ok {
		return v.Validate()
	}
	if v, ok := any(*datos).(validator); ok { // T is a pointer itself
		return v.Validate()
	}
	return nil
}

func accepts(versions []int, v int) bool {
	for _, known := range versions {
		if known == v {
			return true
		}
	}
	return false
}
