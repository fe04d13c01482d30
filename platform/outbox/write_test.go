package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"km0/platform/envelope"
	"km0/platform/keyed"
	"km0/platform/outbox"
)

func TestAnEventIsCommittedOrRolledBackWithItsTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := newSink()
	f.relay(t, s.into)
	for i := range 20 {
		tx, err := f.pool.Begin(t.Context())
		require.NoError(t, err)
		key := "vive"
		if i%2 == 0 {
			key = "muere"
		}
		require.NoError(t, f.outbox.Publish(t.Context(), outbox.Tx(tx), event(key, i/2+1)))
		f.outbox.Wake() // too early: nothing may be seen before COMMIT
		if key == "muere" {
			require.NoError(t, tx.Rollback(t.Context()))
		} else {
			require.NoError(t, tx.Commit(t.Context()))
		}
	}
	require.Eventually(t, func() bool { return s.distinct() == 10 && f.count(t, pending) == 0 }, wait, tick)
	require.NotContains(t, s.keys(), "muere")
	require.Equal(t, 10, f.count(t, "true"))
}

func TestABatchCarriesOrderAndEventInOneImplicitTransaction(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := f.pool.Exec(t.Context(), `CREATE TABLE pedido (id TEXT PRIMARY KEY)`)
	require.NoError(t, err)
	send := func() error {
		b := &pgx.Batch{}
		b.Queue(`INSERT INTO pedido VALUES ('P-1')`)
		require.NoError(t, f.outbox.Publish(t.Context(), outbox.Batch(b), event("P-1", 1), event("P-1", 2)))
		require.Equal(t, 2, b.Len(), "several events are one statement")
		return f.pool.SendBatch(t.Context(), b).Close()
	}
	require.NoError(t, send())
	require.Equal(t, 2, f.count(t, "true"))
	require.ErrorContains(t, send(), "duplicate key")
	require.Equal(t, 2, f.count(t, "true"), "the event of an order that failed")
}

func TestAnEventLandsInTheColumnsOfTheLesson(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := envelope.WithCorrelation(t.Context(), "peticion-7")
	const id = "0198C0DE-0000-7000-8000-00000000ABCD"
	tx, err := f.pool.Begin(ctx)
	require.NoError(t, err)
	require.NoError(t, f.outbox.Publish(ctx, outbox.Tx(tx), outbox.Event{
		ID: id, Agregado: "pedido", AgregadoID: "P-ñ-1", Tipo: "pedido.creado", Version: 3, Topic: topic,
		Datos:   struct{ Cliente string }{"<Núria & cía>"},
		Headers: map[string]string{"traceparent": "00-abc", "clave": "falsa"},
	}, event("P-ñ-1", 2)))
	require.NoError(t, tx.Commit(ctx))

	type row struct {
		ID, Agregado, AgregadoID, Tipo, Carga, Topico, Cabeceras string
		Version                                                  int
		Carril                                                   int16
	}
	rows, err := f.pool.Query(ctx, `SELECT id::text, agregado, agregado_id, tipo, carga::text, topico, cabeceras::text, version, carril
		FROM outbox ORDER BY posicion`)
	require.NoError(t, err)
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	require.NoError(t, err)
	require.Len(t, got, 2)
	headers := map[string]string{}
	require.NoError(t, json.Unmarshal([]byte(got[0].Cabeceras), &headers))
	require.Equal(t, map[string]string{
		"id_evento": strings.ToLower(id), "tipo": "pedido.creado", "version": "3", "clave": "P-ñ-1",
		"correlation_id": "peticion-7", "traceparent": "00-abc",
	}, headers)
	got[0].Cabeceras = ""
	require.Equal(t, row{
		ID: strings.ToLower(id), Agregado: "pedido", AgregadoID: "P-ñ-1", Tipo: "pedido.creado",
		Carga: `{"Cliente": "<Núria & cía>"}`, Topico: topic, Version: 3, Carril: keyed.Lane("P-ñ-1"),
	}, got[0])
	require.Equal(t, uuid.Version(7), uuid.MustParse(got[1].ID).Version())
}

func TestWhatCannotTravelIsRefusedWithoutATrace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	cases := map[string]struct {
		change func(*outbox.Event)
		says   string
	}{
		"id":               {func(e *outbox.Event) { e.ID = "7" }, "no UUID"},
		"aggregate":        {func(e *outbox.Event) { e.Agregado = "" }, "the aggregate is missing"},
		"key":              {func(e *outbox.Event) { e.AgregadoID = "" }, "the aggregate's id is missing"},
		"long key":         {func(e *outbox.Event) { e.AgregadoID = strings.Repeat("x", 201) }, "201 bytes"},
		"NUL in key":       {func(e *outbox.Event) { e.AgregadoID = "P\x00" }, "PostgreSQL can store"},
		"key is no text":   {func(e *outbox.Event) { e.AgregadoID = "P\xff" }, "PostgreSQL can store"},
		"type":             {func(e *outbox.Event) { e.Tipo = "" }, "the type is missing"},
		"version":          {func(e *outbox.Event) { e.Version = 0 }, "version 0"},
		"topic":            {func(e *outbox.Event) { e.Topic = "" }, "the topic is missing"},
		"topic with space": {func(e *outbox.Event) { e.Topic = "pedidos eventos" }, "the topic"},
		"array":            {func(e *outbox.Event) { e.Datos = []int{1} }, "must be an object"},
		"nothing":          {func(e *outbox.Event) { e.Datos = nil }, "must be an object"},
		"no JSON":          {func(e *outbox.Event) { e.Datos = json.RawMessage(`{`) }, "encode datos"},
		"NUL in data":      {func(e *outbox.Event) { e.Datos = map[string]string{"a": `\` + "\x00"} }, "NUL"},
		"too large":        {func(e *outbox.Event) { e.Datos = map[string]string{"a": strings.Repeat("x", outbox.MaxBytes)} }, "too large"},
	}
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	for name, c := range cases {
		bad := event("P-1", 2)
		bad.Topic = "otro.topico" // a statement of its own
		c.change(&bad)
		err := f.outbox.Publish(t.Context(), outbox.Tx(tx), event("P-1", 1), bad)
		require.ErrorContains(t, err, c.says, name)
		require.Equal(t, name == "too large", errors.Is(err, outbox.ErrTooLarge), name)
	}
	harmless := event("P-1", 1)
	harmless.Datos = map[string]string{"a": `\u0000 as text`}
	require.NoError(t, f.outbox.Publish(t.Context(), outbox.Tx(tx), harmless))
	require.NoError(t, tx.Commit(t.Context()), "a refused event broke the transaction")
	require.Equal(t, 1, f.count(t, "true"))
}

func TestPublishObeysTheCallersContext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, f.outbox.Publish(ctx, outbox.Tx(tx), event("P-1", 1)), context.Canceled)
}

func TestPublisherTakesWatermillMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := newSink()
	f.relay(t, s.into)
	tx, err := f.pool.Begin(t.Context())
	require.NoError(t, err)
	m := message.NewMessage(outbox.NewID(), []byte(`{"n": 1}`))
	m.Metadata = message.Metadata{"agregado": "pedido", "clave": "P-1", "tipo": "pedido.creado", "version": "2", "propia": "sí"}
	require.NoError(t, f.outbox.Publisher(outbox.Tx(tx)).Publish(topic, m))
	require.NoError(t, tx.Commit(t.Context()))
	f.outbox.Wake()
	require.Eventually(t, func() bool { return s.distinct() == 1 }, wait, tick)
	require.Equal(t, m.UUID, s.got[0].UUID)
	require.Equal(t, "sí", s.got[0].Metadata.Get("propia"))
	require.Equal(t, "P-1", s.got[0].Metadata.Get("clave"))
}
