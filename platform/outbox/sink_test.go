package outbox_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"km0/platform/envelope"
	"km0/platform/outbox"
)

// sink is a bus that notes what it confirms.
type sink struct {
	refuse func(m *message.Message) error // nil confirms everything

	mu       sync.Mutex
	got      []*message.Message
	ids      map[string]int
	highest  map[string]int // n of a key
	inFlight map[string]int
	swaps    []string
	overlaps []string
}

func newSink() *sink {
	return &sink{ids: map[string]int{}, highest: map[string]int{}, inFlight: map[string]int{}}
}

func (s *sink) into(cfg *outbox.RelayConfig) { cfg.Publisher = s }

// Publish implements message.Publisher.
func (s *sink) Publish(topic string, messages ...*message.Message) error {
	m := messages[0]
	key := m.Metadata.Get(envelope.HeaderClave)
	s.mu.Lock()
	if s.inFlight[key]++; s.inFlight[key] > 1 {
		s.overlaps = append(s.overlaps, key)
	}
	s.mu.Unlock()
	var err error
	if s.refuse != nil {
		err = s.refuse(m)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight[key]--
	if err != nil {
		return err
	}
	var body struct{ Datos struct{ N json.Number } }
	_ = json.Unmarshal(m.Payload, &body)
	if n, err := body.Datos.N.Int64(); err == nil {
		if int(n) > s.highest[key]+1 {
			s.swaps = append(s.swaps, key+" "+body.Datos.N.String())
		}
		s.highest[key] = max(s.highest[key], int(n))
	}
	s.ids[m.UUID]++
	s.got = append(s.got, m)
	return nil
}

// Close implements message.Publisher.
func (s *sink) Close() error { return nil }

func (s *sink) distinct() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids)
}

// keys lists the keys of what was confirmed, once per message.
func (s *sink) keys() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for _, m := range s.got {
		list = append(list, m.Metadata.Get(envelope.HeaderClave))
	}
	return strings.Join(list, " ")
}

func (s *sink) requireOrder(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(t, s.swaps, "published before their predecessor")
	require.Empty(t, s.overlaps, "two events of a key in flight")
}
