package memory_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"km0/platform/bus"
	"km0/platform/bus/bustest"
	"km0/platform/bus/memory"
)

func TestMain(m *testing.M) {
	// Watermill's suite leaves the goroutines of its multiplied subscribers.
	const multiplier = "github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe."
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(multiplier+"func2"), goleak.IgnoreAnyFunction(multiplier+"func3"))
}

func TestConformance(t *testing.T) {
	bustest.Run(t, func(t *testing.T) bustest.Harness {
		d := memory.Open(memory.Config{MaxBytes: 64 << 10})
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		return bustest.Harness{Open: func() bus.Driver { return d }, MaxBytes: 64 << 10, DueTimes: true}
	})
}

func TestAConsumerThatMovedToAnotherTopicIsAnError(t *testing.T) {
	d := memory.Open(memory.Config{})
	topology := bus.Topology{Subscriptions: []bus.Subscription{{Consumer: "inventario", Topic: "pedidos.eventos"}}}
	require.NoError(t, d.Declare(t.Context(), topology))
	topology.Subscriptions[0].Topic = "pagos.eventos"
	require.ErrorContains(t, d.Declare(t.Context(), topology), "it reads pedidos.eventos already")
}
