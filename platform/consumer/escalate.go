package consumer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5"

	"km0/platform/deadletter"
	"km0/platform/envelope"
)

const (
	archiveTimeout = 10 * time.Second
	archiveWait    = time.Second // least time between two tries to archive one message
)

// deadLetter is Watermill's PoisonQueueWithFilter, with the archive as its
// publisher. It keeps for the archive what PoisonQueue does not pass on, the
// typed error, and what it changes, the headers.
//
// A dead letter that is not stored is never acknowledged. The message is given
// back after a wait, because some buses bring it at once.
func (b *builder) deadLetter() (message.HandlerMiddleware, error) {
	poisonQueue, err := middleware.PoisonQueueWithFilter(poison{b}, b.Name+".dlq", b.dies)
	if err != nil {
		return nil, err
	}
	return func(next message.HandlerFunc) message.HandlerFunc {
		guarded := poisonQueue(func(m *message.Message) ([]*message.Message, error) {
			d := deliveryOf(m.Context())
			produced, err := next(m)
			if err != nil {
				d.failure, d.headers = err, maps.Clone(m.Metadata)
			}
			return produced, err
		})
		return func(m *message.Message) ([]*message.Message, error) {
			ctx, d := m.Context(), deliveryOf(m.Context())
			d.notStored = nil
			produced, err := guarded(m)
			if d.notStored == nil {
				return produced, err
			}
			m.Metadata = d.headers // without PoisonQueue's: the next try must find them as they came
			if !waitable(d.notStored) {
				wait(ctx, archiveWait+rand.N(archiveWait))
			}
			return nil, d.notStored // alone: joined with the failure it could look like something else
		}
	}, nil
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// dies says whether err makes a dead letter: not a stop, not something that is
// away, which the message outlives.
func (b *builder) dies(err error) bool {
	return !waitable(err) && !b.Deps.Drain.stopped(err)
}

// poison is the publisher of Watermill's PoisonQueue: it archives. Its error
// keeps the message from being acknowledged.
type poison struct{ *builder }

// Publish implements message.Publisher.
func (p poison) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		if err := p.store(m); err != nil {
			deliveryOf(m.Context()).notStored = err
			return err
		}
	}
	return nil
}

// Close implements message.Publisher.
func (p poison) Close() error { return nil }

func (p poison) store(m *message.Message) error {
	d := deliveryOf(m.Context())
	// The message's own context may be over (watermill#636).
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.Context()), archiveTimeout)
	defer cancel()
	letter := p.letter(m, d)
	var rejection *Rejection
	if !errors.As(d.failure, &rejection) {
		if err := p.archive.Store(ctx, letter); err != nil {
			return p.alarm(letter, err)
		}
		d.outcome = Muerto
		p.Logger.Error("dead letter", "id_evento", letter.MessageID, "class", letter.Class, "attempts", letter.Attempts,
			"reason", letter.Reason)
		return nil
	}
	ctx = envelope.WithCorrelation(ctx, correlation(m, d))
	first, err := p.archive.StoreRejection(ctx, letter, recovering(rejection.Then))
	if err != nil {
		return p.alarm(letter, err)
	}
	d.outcome = Rechazado
	if !first {
		d.outcome = Duplicado
	}
	p.Committed()
	p.Logger.Info("rejected", "id_evento", letter.MessageID, "code", rejection.Code)
	return nil
}

// recovering makes an error of a panic: out here nothing else would, but the
// router, which gives the message back at once.
func recovering(then func(context.Context, pgx.Tx) error) func(context.Context, pgx.Tx) error {
	if then == nil {
		return nil
	}
	return func(ctx context.Context, tx pgx.Tx) (err error) {
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("panic in what follows a rejection: %v\n%s", r, debug.Stack())
			}
		}()
		return then(ctx, tx)
	}
}

// alarm reports what an operator must repair.
func (p poison) alarm(l deadletter.Letter, err error) error {
	p.metrics.notArchived()
	p.Logger.Error("dead letter cannot be stored, the message is kept", "id_evento", l.MessageID, "error", err)
	return err
}

func (p poison) letter(m *message.Message, d *delivery) deadletter.Letter {
	class, _ := classify(d.failure)
	l := deadletter.Letter{
		Consumer: p.Name, Topic: p.Topic, Class: class, Attempts: d.attempts,
		Reason: deadletter.Reason(reason(d.failure)), Error: d.failure.Error(),
		MessageID: d.event.ID, Key: m.Metadata.Get(envelope.HeaderClave), Tipo: d.event.Tipo,
		Headers: d.headers, Body: m.Payload, Fingerprint: d.fingerprint,
	}
	if l.Fingerprint == nil { // no envelope: all that is known is the bytes
		sum := sha256.Sum256(m.Payload)
		l.Fingerprint = sum[:]
	}
	if l.MessageID == "" {
		l.MessageID = m.UUID
	}
	if l.MessageID == "" {
		l.MessageID = "sha256:" + hex.EncodeToString(l.Fingerprint)
	}
	return l
}

// reason is the text of err without a stack.
func reason(err error) string {
	var panicked middleware.RecoveredPanicError
	if errors.As(err, &panicked) {
		return fmt.Sprintf("panic: %v", panicked.V)
	}
	return err.Error()
}
