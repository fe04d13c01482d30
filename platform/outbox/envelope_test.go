package outbox

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"km0/platform/envelope"
)

// published keeps what the forwarder publishes.
type published struct {
	topic    string
	messages chan *message.Message
}

func (p *published) Publish(topic string, messages ...*message.Message) error {
	p.topic = topic
	p.messages <- messages[0]
	return nil
}

func (p *published) Close() error { return nil }

func TestTheForwarderUnwrapsWhatTheRelayWraps(t *testing.T) {
	t.Parallel()
	e := envelope.Event{
		ID: NewID(), Tipo: `raro "ñ" \ <&>`, Version: 2, FechaMS: 1789000000000, Origen: "pedidos\n",
		Datos: json.RawMessage(`{"a": 1.0, "b": "ñ <&> \u0000", "n": 9007199254740993}`),
	}
	wrapped, err := enveloped(`tópico "1"`, e, []byte(`{"clave": "P-1", "raro": "ñ \"x\" \u0000 {[1]}"}`))
	require.NoError(t, err)

	channel := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 1}, nil)
	out := &published{messages: make(chan *message.Message, 1)}
	f, err := forwarder.NewForwarder(channel, out, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: "x"})
	require.NoError(t, err)
	go func() { _ = f.Run(context.Background()) }()
	<-f.Running()
	defer func() { require.NoError(t, f.Close()) }()
	require.NoError(t, channel.Publish("x", wrapped))
	select {
	case m := <-out.messages:
		require.Equal(t, `tópico "1"`, out.topic)
		require.Equal(t, e.ID, m.UUID)
		require.Equal(t, message.Metadata{"clave": "P-1", "raro": "ñ \"x\" \x00 {[1]}"}, m.Metadata)
		back, err := envelope.Decode(m.Payload)
		require.NoError(t, err)
		require.Equal(t, e, back)
	case <-time.After(5 * time.Second):
		t.Fatal("the forwarder did not unwrap it")
	}
}

func TestHeadersThatAreNoStringsAreSeen(t *testing.T) {
	t.Parallel()
	for object, want := range map[string]bool{
		`{}`: true, `{"a":"b"}`: true, ` { "a" : "b" , "c" : "{1,\"2}" } `: true,
		`{"a":1}`: false, `{"a":null}`: false, `{"a":{"b":"c"}}`: false, `{"a":["b"]}`: false,
		`[]`: false, `"a"`: false, `1`: false, `null`: false, `["a","b"]`: false, `{"a":true}`: false,
	} {
		require.True(t, json.Valid([]byte(object)), object)
		require.Equal(t, want, stringsOnly([]byte(object)), object)
	}
}

func BenchmarkEnveloped(b *testing.B) {
	e := envelope.Event{ID: NewID(), Tipo: "pedido.creado", Version: 2, FechaMS: 1789000000000, Origen: "pedidos", Datos: json.RawMessage(`{"id": "P-2026-000123", "cliente": "ana", "lineas": [{"producto": "queso-curado", "cantidad": 2, "precio_centimos": 1450}], "direccion_entrega": {"ciudad": "Girona", "codigo_postal": "17001"}}`)}
	headers := []byte(`{"clave": "P-1", "tipo": "pedido.creado", "id_evento": "6f1c9e2a-0000-7000-8000-000000000000"}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := enveloped("pedidos.eventos", e, headers); err != nil {
			b.Fatal(err)
		}
	}
}
