// Package inbox remembers which messages a consumer has processed, in the
// transaction of the effect: the record and the effect are committed together,
// or neither is.
package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"km0/platform/postgres"
)

// ErrOtherContent means that the id was processed before with another content:
// somebody reuses identifiers. It is neither a duplicate nor a new message.
var ErrOtherContent = errors.New("the id was processed before with another content")

// Record notes in tx that consumer processes message id. It reports whether
// that was already done, by an earlier transaction or this one; another
// transaction that is doing it at the moment is waited for. The same id with
// another fingerprint is ErrOtherContent.
func Record(ctx context.Context, tx pgx.Tx, consumer, id string, fingerprint []byte) (duplicate bool, err error) {
	tag, err := tx.Exec(ctx, `
		INSERT INTO mensajes_procesados (id_mensaje, consumidor, huella) VALUES ($1, $2, $3)
		ON CONFLICT DO NOTHING`, id, consumer, fingerprint)
	if err != nil {
		return false, fmt.Errorf("record message %s of %s: %w", id, consumer, err)
	}
	if tag.RowsAffected() == 1 {
		return false, nil
	}
	var before []byte
	err = tx.QueryRow(ctx, `
		SELECT huella FROM mensajes_procesados WHERE id_mensaje = $1 AND consumidor = $2`, id, consumer).Scan(&before)
	if err != nil {
		return false, fmt.Errorf("read the record of message %s of %s: %w", id, consumer, err)
	}
	if !bytes.Equal(before, fingerprint) {
		return false, fmt.Errorf("message %s of %s: %w", id, consumer, ErrOtherContent)
	}
	return true, nil
}

// Purge forgets messages processed longer ago than age, by the database's
// clock, in small batches. Age must exceed the time after which a message can
// still come back: the retention of the bus and of the dead letters. Messages
// that lie in mensajes_muertos are kept.
func Purge(ctx context.Context, pool *pgxpool.Pool, age time.Duration) (int64, error) {
	n, err := postgres.Purge(ctx, pool, `
		DELETE FROM mensajes_procesados WHERE (id_mensaje, consumidor) IN (
			SELECT id_mensaje, consumidor FROM mensajes_procesados p
			WHERE procesado_en < now() - $2::interval
			  AND NOT EXISTS (SELECT FROM mensajes_muertos m WHERE m.consumidor = p.consumidor AND m.id_mensaje = p.id_mensaje)
			ORDER BY procesado_en LIMIT $1 FOR UPDATE OF p SKIP LOCKED)`, 1000, age)
	if err != nil {
		return n, fmt.Errorf("purge the inbox: %w", err)
	}
	return n, nil
}
