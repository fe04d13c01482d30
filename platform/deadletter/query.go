package deadletter

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// Filter selects letters. Zero values select all.
type Filter struct {
	Consumer string
	Class    Class
	BeforeID int64 // for the next page: the last ID of this one
	Limit    int   // at most 200, which is the default
}

// List returns letters, newest first.
func (a Archive) List(ctx context.Context, f Filter) ([]Letter, error) {
	if f.Limit < 1 || f.Limit > 200 {
		f.Limit = 200
	}
	rows, err := a.Pool.Query(ctx, `
		SELECT id, consumidor, id_mensaje, topico, clave, tipo, clase, motivo, error, intentos, cabeceras, carga, huella, muerto_en
		FROM mensajes_muertos
		WHERE ($1 = '' OR consumidor = $1) AND ($2 = '' OR clase = $2) AND ($3 = 0 OR id < $3)
		ORDER BY id DESC LIMIT $4`, f.Consumer, string(f.Class), f.BeforeID, f.Limit)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	letters, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return letters, nil
}

func scan(row pgx.CollectableRow) (l Letter, err error) {
	var headers []byte
	err = row.Scan(&l.ID, &l.Consumer, &l.MessageID, &l.Topic, &l.Key, &l.Tipo, &l.Class, &l.Reason, &l.Error,
		&l.Attempts, &headers, &l.Body, &l.Fingerprint, &l.At)
	if err != nil {
		return l, err
	}
	l.Headers, err = decodeHeaders(headers)
	return l, err
}

func decodeHeaders(encoded []byte) (map[string]string, error) {
	var values map[string]any
	if err := json.Unmarshal(encoded, &values); err != nil {
		return nil, fmt.Errorf("decode headers: %w", err)
	}
	headers := make(map[string]string, len(values))
	for name, value := range values {
		if unquoted, err := strconv.Unquote(name); err == nil && name[0] == '"' {
			name = unquoted
		}
		switch v := value.(type) {
		case string:
			headers[name] = v
		case map[string]any:
			text, _ := v["base64"].(string)
			raw, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				return nil, fmt.Errorf("decode header %s: %w", name, err)
			}
			headers[name] = string(raw)
		}
	}
	return headers, nil
}

// Count is how many letters of a class one consumer has.
type Count struct {
	Consumer      string
	Class         Class
	Letters       int64
	OldestSeconds float64
}

// Counts returns one Count per consumer and class that has letters.
func (a Archive) Counts(ctx context.Context) ([]Count, error) {
	rows, err := a.Pool.Query(ctx, `
		SELECT consumidor, clase, count(*), greatest(0, extract(epoch FROM clock_timestamp() - min(muerto_en)))::float8
		FROM mensajes_muertos GROUP BY consumidor, clase`)
	if err != nil {
		return nil, fmt.Errorf("count dead letters: %w", err)
	}
	counts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Count])
	if err != nil {
		return nil, fmt.Errorf("count dead letters: %w", err)
	}
	return counts, nil
}
