package bustest

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"km0/platform/bus"
	"km0/platform/envelope"
)

// takeAll acknowledges n messages and returns their ids.
func (r reading) takeAll(t testing.TB, n int) (ids []string) {
	t.Helper()
	seen := map[string]bool{}
	for len(seen) < n {
		m := r.next(t)
		if !seen[m.UUID] {
			seen[m.UUID] = true
			ids = append(ids, m.UUID)
		}
		m.Ack()
	}
	return ids
}

func lateConsumer(t *testing.T, h Harness) {
	d := h.Open()
	declare(t, d, "inventario")
	for n := 1; n <= 10; n++ {
		publish(t, d, event("a", n))
	}
	subscribe(t, d, "inventario", 16).takeAll(t, 10)
	late := h.Open()
	declare(t, late, "pagos")
	publish(t, d, event("a", 11))
	ids := subscribe(t, late, "pagos", 16).takeAll(t, 11)
	require.Equal(t, "a/1", ids[0])
	require.Equal(t, "a/11", ids[10])
}

func nobodySubscribed(t *testing.T, h Harness) {
	d := h.Open()
	require.NoError(t, d.Declare(t.Context(), topology()))
	publish(t, d, event("a", 1), event("a", 2))
	declare(t, d, "inventario")
	require.Equal(t, []string{"a/1", "a/2"}, subscribe(t, d, "inventario", 16).takeAll(t, 2))
}

func twoConsumers(t *testing.T, h Harness) {
	d := h.Open()
	declare(t, d, "inventario", "pagos")
	publish(t, d, event("a", 1), event("b", 1))
	for _, consumer := range []string{"inventario", "pagos"} {
		require.ElementsMatch(t, []string{"a/1", "b/1"}, subscribe(t, d, consumer, 16).takeAll(t, 2))
	}
}

func bytesAndHeaders(t *testing.T, h Harness) {
	d := h.Open()
	declare(t, d, "inventario")
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	payloads := [][]byte{every, {}, {0}, []byte(`{"importe": 1.0, "ñ": "<&>\u2028"}`), []byte("\xff\xfe"), bytes.Repeat([]byte("km0 "), 10_000)}
	headers := message.Metadata{
		"tipo": "pedido.creado", "vacio": "", "": "sin nombre", "cliente": "Núria 🍅 日本", "comillas": `"\'` + "`${x}",
		"control": "\x00\x01\t\r\n\x7f", "marcas": "<b>&amp;\u2028</b>", "largo": strings.Repeat("x", 5000),
	}
	want := map[string][]byte{}
	for i, payload := range payloads {
		m := message.NewMessage(fmt.Sprint("id-", i), payload)
		for name, value := range headers {
			m.Metadata.Set(name, value)
		}
		m.Metadata.Set(envelope.HeaderClave, fmt.Sprint("clave ñ ", i))
		want[m.UUID] = payload
		publish(t, d, m)
	}
	r := subscribe(t, d, "inventario", 16)
	for len(want) > 0 {
		m := r.next(t)
		payload, expected := want[m.UUID]
		require.True(t, expected, "%s came twice", m.UUID)
		delete(want, m.UUID)
		require.True(t, bytes.Equal(payload, m.Payload), "payload of %s", m.UUID)
		for name, value := range headers {
			got, ok := m.Metadata[name]
			require.True(t, ok, "header %q is missing", name)
			require.Equal(t, value, got, "header %q", name)
		}
		require.Contains(t, m.Metadata.Get(envelope.HeaderClave), "clave ñ ")
		m.Ack()
	}
}

func oversized(t *testing.T, h Harness) {
	d := h.Open()
	declare(t, d, "inventario")
	pub := d.Publisher()
	var others sync.WaitGroup
	for k := range 100 {
		others.Go(func() {
			if err := pub.Publish(topic, event(fmt.Sprint("k", k), 1)); err != nil {
				t.Error(err)
			}
		})
	}
	large := event("grande", 1)
	large.Payload = make([]byte, h.MaxBytes+1)
	err := pub.Publish(topic, large)
	others.Wait()
	require.ErrorIs(t, err, bus.ErrRefused)
	require.ErrorContains(t, err, "grande/1")
	fits := event("grande", 2)
	fits.Payload = make([]byte, h.MaxBytes)
	publish(t, d, fits)
	ids := subscribe(t, d, "inventario", 16).takeAll(t, 101)
	require.Contains(t, ids, "grande/2")
	require.NotContains(t, ids, "grande/1")
}

func dueTime(t *testing.T, h Harness) {
	if !h.DueTimes {
		t.Skip("this driver does not hold messages back")
	}
	d := h.Open()
	declare(t, d, "inventario")
	r := subscribe(t, d, "inventario", 16)
	due := time.Now().Add(3 * time.Second).Truncate(time.Second)
	waits := event("a", 1)
	waits.Metadata.Set(envelope.HeaderNoAntes, due.Format(time.RFC3339))
	publish(t, d, waits)
	publish(t, d, event("a", 2))
	publish(t, d, event("b", 1))
	m := r.next(t)
	require.Equal(t, "b/1", m.UUID, "another key must not wait")
	m.Ack()
	m = r.next(t)
	require.Equal(t, "a/1", m.UUID)
	require.False(t, time.Now().Before(due), "delivered before it was due")
	require.Less(t, time.Since(due), 5*time.Second)
	m.Ack()
	m = r.next(t)
	require.Equal(t, "a/2", m.UUID)
	m.Ack()

	bad := event("c", 1)
	bad.Metadata.Set(envelope.HeaderNoAntes, "mañana")
	require.ErrorIs(t, d.Publisher().Publish(topic, bad), bus.ErrRefused)
}
