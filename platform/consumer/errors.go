package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5"

	"km0/platform/deadletter"
	"km0/platform/envelope"
	"km0/platform/inbox"
	"km0/platform/postgres"
)

// failure is an error with its class. Permanent ones are never retried.
type failure struct {
	class     deadletter.Class
	permanent bool
	err       error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// Transient marks err as one that a later attempt may not meet: it is retried
// with growing waits, and dead-lettered as transitorio_agotado after the last.
func Transient(err error) error { return &failure{class: deadletter.TransitorioAgotado, err: err} }

// Permanent marks err as one that no attempt can cure: dead letter at once,
// class datos.
func Permanent(err error) error {
	return &failure{class: deadletter.Datos, permanent: true, err: err}
}

// Contract marks err as a message outside the contracts this consumer knows:
// dead letter at once, class contrato.
func Contract(err error) error {
	return &failure{class: deadletter.Contrato, permanent: true, err: err}
}

// Rejection is a business rule's no: the effect is rolled back, and in a second
// transaction the message is recorded as processed, archived as a dead letter
// of class negocio, and Then runs (it publishes the module's rejection event).
type Rejection struct {
	Code string // 'sin_stock'
	Err  error
	Then func(ctx context.Context, tx pgx.Tx) error // may be nil
}

func (r *Rejection) Error() string { return fmt.Sprintf("%s: %v", r.Code, r.Err) }
func (r *Rejection) Unwrap() error { return r.Err }

// Reject returns a Rejection as an error.
func Reject(code string, err error, then func(ctx context.Context, tx pgx.Tx) error) error {
	return &Rejection{Code: code, Err: err, Then: then}
}

// classify gives the class of err and whether no other attempt makes sense.
func classify(err error) (class deadletter.Class, permanent bool) {
	var (
		rejection *Rejection
		known     *failure
		panicked  middleware.RecoveredPanicError
	)
	switch {
	case errors.As(err, &rejection):
		return deadletter.Negocio, true
	case errors.As(err, &known):
		return known.class, known.permanent
	case errors.Is(err, envelope.ErrMalformed), errors.Is(err, inbox.ErrOtherContent):
		return deadletter.Datos, true
	case errors.As(err, &panicked):
		return deadletter.Fallo, false
	case postgres.Transient(err), errors.Is(err, context.DeadlineExceeded):
		return deadletter.TransitorioAgotado, false
	}
	return deadletter.Fallo, false
}
