package outbox_test

import (
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"km0/platform/outbox"
)

// BenchmarkPublish is what an event costs its writer beside the round trip.
func BenchmarkPublish(b *testing.B) {
	o := outbox.New(outbox.Config{Origen: "pedidos"})
	e := outbox.Event{
		Agregado: "pedido", AgregadoID: "P-2026-000123", Tipo: "pedido.creado", Version: 2, Topic: "pedidos.eventos",
		Datos: json.RawMessage(orderJSON),
	}
	b.ReportAllocs()
	for b.Loop() {
		require.NoError(b, o.Publish(b.Context(), outbox.Batch(&pgx.Batch{}), e))
	}
}
