package envelope_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"km0/platform/envelope"
)

func sample() envelope.Event {
	return envelope.Event{
		ID: "6f1c9e2a-0000-7000-8000-000000000000", Tipo: "pedido.creado", Version: 2, FechaMS: 1789000000000, Origen: "pedidos",
		Datos: json.RawMessage(`{"id":"P-1","importe":9007199254740993,"raro":1.50,"texto":"<&> ñ"}`),
	}
}

func TestAnEventComesBackDigitForDigit(t *testing.T) {
	t.Parallel()
	body, err := sample().Encode()
	require.NoError(t, err)
	require.JSONEq(t, `{"id_evento":"6f1c9e2a-0000-7000-8000-000000000000","tipo":"pedido.creado","version":2,"fecha_ms":1789000000000,
		"origen":"pedidos","datos":{"id":"P-1","importe":9007199254740993,"raro":1.50,"texto":"<&> ñ"}}`, string(body))
	require.Contains(t, string(body), `"importe":9007199254740993,"raro":1.50,"texto":"<&> ñ"`)
	back, err := envelope.Decode(body)
	require.NoError(t, err)
	require.Equal(t, sample(), back)
}

func TestDecodeRefusesWhatNoConsumerCouldUse(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"nothing":           ``,
		"no JSON":           `pedido`,
		"a list":            `[]`,
		"no id":             `{"tipo":"a","version":1,"datos":{}}`,
		"no type":           `{"id_evento":"a","version":1,"datos":{}}`,
		"no version":        `{"id_evento":"a","tipo":"a","datos":{}}`,
		"version 0":         `{"id_evento":"a","tipo":"a","version":0,"datos":{}}`,
		"version -1":        `{"id_evento":"a","tipo":"a","version":-1,"datos":{}}`,
		"version as text":   `{"id_evento":"a","tipo":"a","version":"1","datos":{}}`,
		"version too large": `{"id_evento":"a","tipo":"a","version":99999999999999999999,"datos":{}}`,
		"no data":           `{"id_evento":"a","tipo":"a","version":1}`,
		"data null":         `{"id_evento":"a","tipo":"a","version":1,"datos":null}`,
		"data a list":       `{"id_evento":"a","tipo":"a","version":1,"datos":[]}`,
		"trailing garbage":  `{"id_evento":"a","tipo":"a","version":1,"datos":{}} x`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := envelope.Decode([]byte(body))
			require.ErrorIs(t, err, envelope.ErrMalformed)
		})
	}
}

func TestDecodeIgnoresFieldsOfTheFuture(t *testing.T) {
	t.Parallel()
	e, err := envelope.Decode([]byte(`{"id_evento":"a","tipo":"b","version":1,"datos":{"x":1},"prioridad":"alta"}`))
	require.NoError(t, err)
	require.JSONEq(t, `{"x":1}`, string(e.Datos))
}

func TestTheFingerprintKnowsTheContentAndNothingElse(t *testing.T) {
	t.Parallel()
	same := sample()
	same.ID, same.FechaMS, same.Origen = "another", 1, "nadie"
	require.Equal(t, sample().Fingerprint(), same.Fingerprint())
	for _, change := range []func(*envelope.Event){
		func(e *envelope.Event) { e.Tipo = "pedido.pagado" },
		func(e *envelope.Event) { e.Version = 1 },
		func(e *envelope.Event) { e.Datos = json.RawMessage(`{}`) },
	} {
		other := sample()
		change(&other)
		require.NotEqual(t, sample().Fingerprint(), other.Fingerprint())
	}
}

func TestEncodeRefusesDataThatAreNoJSON(t *testing.T) {
	t.Parallel()
	e := sample()
	e.Datos = json.RawMessage(`{"a":`)
	_, err := e.Encode()
	require.Error(t, err)
}

func TestTheCorrelationTravelsInTheContext(t *testing.T) {
	t.Parallel()
	require.Empty(t, envelope.Correlation(context.Background()))
	require.Equal(t, "c-1", envelope.Correlation(envelope.WithCorrelation(context.Background(), "c-1")))
}

func FuzzDecode(f *testing.F) {
	body, err := sample().Encode()
	require.NoError(f, err)
	f.Add(body)
	f.Add([]byte(`{"id_evento":"\u0000","tipo":"\ud800","version":1,"datos":{"a":1e999}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := envelope.Decode(body)
		if err != nil {
			return
		}
		again, err := e.Encode()
		require.NoError(t, err)
		back, err := envelope.Decode(again)
		require.NoError(t, err)
		require.Equal(t, e, back)
	})
}
