package deadletter_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"km0/platform/deadletter"
	"km0/platform/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const name = "inventario.descuento_stock"

func archive(t testing.TB) deadletter.Archive {
	return deadletter.Archive{Pool: testbed.ModuleDatabase(t, "prueba", nil)}
}

func letter(id string) deadletter.Letter {
	sum := sha256.Sum256([]byte(id))
	return deadletter.Letter{
		Consumer: name, MessageID: id, Topic: "pedidos.eventos", Key: "P-1", Tipo: "pedido.creado",
		Class: deadletter.Datos, Error: "no such product", Attempts: 1, Body: []byte("body of " + id), Fingerprint: sum[:],
	}
}

func list(t rapid.TB, a deadletter.Archive, f deadletter.Filter) []deadletter.Letter {
	t.Helper()
	letters, err := a.List(context.Background(), f)
	require.NoError(t, err)
	return letters
}

func TestStoredTwiceIsThereOnceAndOtherContentIsThereToo(t *testing.T) {
	t.Parallel()
	a := archive(t)
	l := letter("e-1")
	require.NoError(t, a.Store(t.Context(), l))
	again := l
	again.Error = "another reason"
	require.NoError(t, a.Store(t.Context(), again))
	letters := list(t, a, deadletter.Filter{})
	require.Len(t, letters, 1)
	require.Equal(t, "no such product", letters[0].Error)

	other := l
	other.Fingerprint = []byte("of another content")
	require.NoError(t, a.Store(t.Context(), other))
	require.Len(t, list(t, a, deadletter.Filter{}), 2)
}

// Any bytes in any place that a foreign message fills.
func TestWhateverAMessageHoldsComesBackAsItCame(t *testing.T) {
	t.Parallel()
	a := archive(t)
	anyText := rapid.Custom(func(t *rapid.T) string {
		return string(rapid.SliceOfN(rapid.SampledFrom([]byte("a\x00\xff\xc3\xa9\"\\\n\x1b{")), 0, 8).Draw(t, "bytes"))
	})
	var n int
	rapid.Check(t, func(rt *rapid.T) {
		n++
		l := letter(fmt.Sprint("e-", n))
		l.Headers = rapid.MapOf(anyText, anyText).Draw(rt, "headers")
		l.Body = rapid.SliceOf(rapid.Byte()).Draw(rt, "body")
		l.Key, l.Tipo, l.Error = anyText.Draw(rt, "key"), anyText.Draw(rt, "tipo"), anyText.Draw(rt, "error")
		require.NoError(rt, a.Store(context.Background(), l))
		got := list(rt, a, deadletter.Filter{Limit: 1})[0]
		require.Equal(rt, l.Headers, got.Headers)
		require.True(rt, bytes.Equal(l.Body, got.Body))
		if utf8.ValidString(l.Key) && !strings.Contains(l.Key, "\x00") {
			require.Equal(rt, l.Key, got.Key)
		}
	})
}

func TestReasonIsShortAndPrintableAndTheErrorIsWhole(t *testing.T) {
	t.Parallel()
	a := archive(t)
	l := letter(strings.Repeat("x", 10_000))
	l.Error = "ñ\x1b[2J\u202e " + strings.Repeat("é", 300) + "\nsecond line\x00" + strings.Repeat("z", 100_000)
	require.NoError(t, a.Store(t.Context(), l))
	got := list(t, a, deadletter.Filter{})[0]
	require.Equal(t, 200, utf8.RuneCountInString(got.Reason))
	require.True(t, strings.HasPrefix(got.Reason, `ñ\x1b[2J\u202e é`), got.Reason)
	require.True(t, strings.HasSuffix(got.Reason, "é…"))
	require.Len(t, got.Error, 64<<10)
	require.Contains(t, got.Error, `second line\x00zzz`)
}

func TestRejectionIsDoneWholeOrNotAtAllAndOnce(t *testing.T) {
	t.Parallel()
	a := archive(t)
	l := letter("e-1")
	l.Class = deadletter.Negocio
	var ran int
	failed := errors.New("outbox refused")
	_, err := a.StoreRejection(t.Context(), l, func(context.Context, pgx.Tx) error { return failed })
	require.ErrorIs(t, err, failed)
	require.Empty(t, list(t, a, deadletter.Filter{}))

	for i := range 3 {
		first, err := a.StoreRejection(t.Context(), l, func(context.Context, pgx.Tx) error { ran++; return nil })
		require.NoError(t, err)
		require.Equal(t, i == 0, first)
	}
	require.Equal(t, 1, ran)
	require.Len(t, list(t, a, deadletter.Filter{}), 1)
}

func TestListFiltersAndPagesAndCountsAgree(t *testing.T) {
	t.Parallel()
	a := archive(t)
	for i := range 5 {
		l := letter(fmt.Sprint("e-", i))
		if i == 4 {
			l.Consumer, l.Class = "pagos.cobro", deadletter.Fallo
		}
		require.NoError(t, a.Store(t.Context(), l))
	}
	page := list(t, a, deadletter.Filter{Limit: 2})
	require.Equal(t, []string{"e-4", "e-3"}, []string{page[0].MessageID, page[1].MessageID})
	page = list(t, a, deadletter.Filter{Limit: 2, BeforeID: page[1].ID})
	require.Equal(t, []string{"e-2", "e-1"}, []string{page[0].MessageID, page[1].MessageID})
	require.Len(t, list(t, a, deadletter.Filter{Consumer: name}), 4)
	require.Len(t, list(t, a, deadletter.Filter{Class: deadletter.Fallo}), 1)
	require.Empty(t, list(t, a, deadletter.Filter{Consumer: "x' OR '1'='1"}))

	counts, err := a.Counts(t.Context())
	require.NoError(t, err)
	found := map[string]int64{}
	for _, c := range counts {
		found[c.Consumer+"/"+string(c.Class)] = c.Letters
		require.Less(t, c.OldestSeconds, 60.0)
	}
	require.Equal(t, map[string]int64{name + "/datos": 4, "pagos.cobro/fallo": 1}, found)
}
