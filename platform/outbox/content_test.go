package outbox_test

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"km0/platform/envelope"
	"km0/platform/outbox"
)

// TestContentSurvivesItsWayThroughTheTable: jsonb reorders keys and rewrites
// numbers; identity hangs on the id, amounts stay equal as decimals, nothing is
// lost, and two publications of one row have the same bytes.
func TestContentSurvivesItsWayThroughTheTable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := newSink()
	texts := []string{
		`{"z": 1, "a": {"y": 2, "b": [3, 1, 2]}}`,
		`{"importe":1.0,"otro":1,"exp":1e2,"neg":-0.10,  "cero":0.000}`,
		`{"largo":123456789012345678901234567890.123456789012345678901234567890,"minimo":1e-30}`,
		`{"entero":9007199254740993,"mayor":18446744073709551616}`,
		`{"escapes":"\u00f1\u20ac \ud83c\udf45 \\ \/ \" \b\f\n\r\t","marcas":"<b>&amp;</b> \u2028"}`,
		`{"vacio":{},"lista":[],"nulo":null,"":"clave vacía","desconocido":{"x":[true,false]}}`,
	}
	ids := map[string]string{}
	for _, text := range texts {
		e := event("P-"+text[:8], 1)
		e.ID, e.Datos = outbox.NewID(), json.RawMessage(text)
		ids[e.ID] = text
		f.publish(t, e)
	}
	r := f.relay(t, s.into)
	require.Eventually(t, func() bool { return f.count(t, pending) == 0 }, wait, tick)
	require.Len(t, s.got, len(texts), "each row is done after one delivery")
	stop(t, r)

	_, err := f.pool.Exec(t.Context(), `UPDATE outbox SET publicado_en = NULL`)
	require.NoError(t, err)
	f.relay(t, s.into)
	require.Eventually(t, func() bool { return f.count(t, pending) == 0 }, wait, tick)

	bodies := map[string]string{}
	for _, m := range s.got {
		e, err := envelope.Decode(m.Payload)
		require.NoError(t, err)
		require.Equal(t, m.UUID, e.ID)
		require.Equal(t, "pedidos", e.Origen)
		require.Positive(t, e.FechaMS)
		var want, got any
		decode(t, ids[e.ID], &want)
		decode(t, string(e.Datos), &got)
		require.Equal(t, decimals(t, want), decimals(t, got))
		if first, seen := bodies[e.ID]; seen {
			require.Equal(t, first, string(m.Payload))
		}
		bodies[e.ID] = string(m.Payload)
	}
	require.Len(t, bodies, len(texts))
}

func decode(t *testing.T, text string, into *any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	require.NoError(t, d.Decode(into))
}

// decimals replaces numbers by exact fractions.
func decimals(t *testing.T, v any) any {
	t.Helper()
	switch v := v.(type) {
	case json.Number:
		r, ok := new(big.Rat).SetString(v.String())
		require.True(t, ok, v)
		return r.RatString()
	case map[string]any:
		for k := range v {
			v[k] = decimals(t, v[k])
		}
	case []any:
		for i := range v {
			v[i] = decimals(t, v[i])
		}
	}
	return v
}
