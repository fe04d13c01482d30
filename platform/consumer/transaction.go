package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"km0/platform/faults"
	"km0/platform/inbox"
)

// transaction runs the inbox and the handler in one transaction: the whole
// point of this package. Nothing is acknowledged before it has committed.
func (b *builder) transaction(next message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) {
		return b.inTransaction(m.Context(), func(tx pgx.Tx) ([]*message.Message, error) {
			deliveryOf(m.Context()).tx = tx
			return next(m)
		})
	}
}

func (b *builder) inTransaction(ctx context.Context, work func(pgx.Tx) ([]*message.Message, error)) ([]*message.Message, error) {
	tx, err := b.DB.Begin(ctx)
	if err != nil {
		return nil, &away{fmt.Errorf("begin: %w", err)}
	}
	committed := false
	defer func() { // also after a panic
		if !committed {
			rollback(ctx, tx)
		}
	}()
	produced, err := work(tx)
	if err != nil {
		return nil, err
	}
	faults.Point(faults.ConsumerInTx)
	if err := tx.Commit(ctx); err != nil {
		return nil, commitError(err)
	}
	committed = true
	faults.Point(faults.ConsumerCommitted)
	b.Committed()
	return produced, nil
}

// commitError tells a refused COMMIT, which is a failure as any, from one whose
// answer never came: as a failure it could end as a dead letter of something
// that was done.
func commitError(err error) error {
	var refused *pgconn.PgError
	err = fmt.Errorf("commit: %w", err)
	if errors.As(err, &refused) || errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, pgx.ErrTxClosed) {
		return err
	}
	return &away{err}
}

// rollback uses a context of its own: with a dead one pgx would close the
// connection instead.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// inbox is Watermill's Deduplicator, which marks a message before it is
// processed: right only because this repository marks it in the transaction
// that the handler writes to.
func (b *builder) inbox() message.HandlerMiddleware {
	return (&middleware.Deduplicator{
		KeyFactory: func(m *message.Message) (string, error) { return deliveryOf(m.Context()).event.ID, nil },
		Repository: repository{},
		Timeout:    b.Settings.Timeout,
	}).Middleware
}

type repository struct{}

// IsDuplicate implements middleware.ExpiringKeyRepository.
func (repository) IsDuplicate(ctx context.Context, id string) (bool, error) {
	d := deliveryOf(ctx)
	duplicate, err := inbox.Record(ctx, d.tx, d.consumer, id, d.fingerprint)
	switch {
	case duplicate:
		d.outcome = Duplicado
	case errors.Is(err, inbox.ErrOtherContent):
		d.metrics.otherContent()
	}
	return duplicate, err
}
