package consumer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"km0/platform/deadletter"
	"km0/platform/envelope"
)

const archiveTimeout = 10 * time.Second

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
			return p.notStored(letter, err)
		}
		d.outcome = Muerto
		p.Logger.Error("dead letter", "id_evento", letter.MessageID, "class", letter.Class, "attempts", letter.Attempts,
			"reason", deadletter.Reason(letter.Error))
		return nil
	}
	first, err := p.archive.StoreRejection(envelope.WithCorrelation(ctx, correlation(m, d)), letter, rejection.Then)
	if err != nil {
		return p.notStored(letter, err)
	}
	d.outcome = Rechazado
	if !first {
		d.outcome = Duplicado
	}
	p.Committed()
	p.Logger.Info("rejected", "id_evento", letter.MessageID, "code", rejection.Code)
	return nil
}

// notStored lets the message come back, with the pause of the subscriber.
func (p poison) notStored(l deadletter.Letter, err error) error {
	p.metrics.notArchived()
	p.Logger.Error("dead letter cannot be stored, the message is kept", "id_evento", l.MessageID, "error", err)
	return err
}

func (p poison) letter(m *message.Message, d *delivery) deadletter.Letter {
	class, _ := classify(d.failure)
	l := deadletter.Letter{
		Consumer: p.Name, Topic: p.Topic, Class: class, Error: d.failure.Error(), Attempts: d.attempts,
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
