package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"km0/platform/consumer"
	"km0/platform/envelope"
)

type byValue struct{ N int64 }

func (v byValue) Validate() error { return odd(v.N) }

type byPointer struct{ N int64 }

func (v *byPointer) Validate() error { return odd(v.N) }

func odd(n int64) error {
	if n%2 == 0 {
		return errors.New("N must be odd")
	}
	return nil
}

func TestOnChecksVersionFormAndValues(t *testing.T) {
	t.Parallel()
	var got int64
	handlers := map[string]consumer.Handler{
		"value": consumer.On([]int{1, 2}, func(_ context.Context, _ pgx.Tx, _ envelope.Event, v byValue) error { got = v.N; return nil }),
		"pointer method": consumer.On([]int{1, 2}, func(_ context.Context, _ pgx.Tx, _ envelope.Event, v byPointer) error {
			got = v.N
			return nil
		}),
		"pointer": consumer.On([]int{1, 2}, func(_ context.Context, _ pgx.Tx, _ envelope.Event, v *byPointer) error { got = v.N; return nil }),
	}
	for what, h := range handlers {
		call := func(version int, datos string) error {
			return h(t.Context(), nil, envelope.Event{Tipo: tipo, Version: version, Datos: json.RawMessage(datos)})
		}
		require.NoError(t, call(2, `{"N":9007199254740993,"unknown":[]}`), what)
		require.EqualValues(t, 9007199254740993, got, "every digit")
		require.ErrorContains(t, call(3, `{"N":1}`), "version 3", what)
		require.ErrorContains(t, call(1, `{"N":"1"}`), "decode", what)
		require.ErrorContains(t, call(1, `{"N":2}`), "odd", what)
	}
}
