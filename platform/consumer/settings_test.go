package consumer_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"km0/platform/consumer"
)

func TestTheChainHasOneOrder(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{
		"telemetry", "drain", "pause", "dead letter", "retry", "recoverer",
		"timeout", "error classes", "transaction", "inbox", "handler",
	}, consumer.Chain(consumer.Consumer{}))
	require.Equal(t, []string{
		"telemetry", "drain", "pause", "dead letter", "retry", "recoverer", "circuit breaker", "throttle",
		"timeout", "error classes", "batch transaction", "inbox", "handler",
	}, consumer.Chain(consumer.Consumer{Settings: consumer.Settings{
		Batch:          consumer.Batch{Size: 2, Wait: time.Millisecond},
		Throttle:       consumer.Throttle{Count: 1, Per: time.Second},
		CircuitBreaker: consumer.CircuitBreaker{Failures: 1, Open: time.Second},
	}}))
}

func TestWhatSettingsLeaveAtZeroIsInherited(t *testing.T) {
	t.Parallel()
	base := consumer.Defaults()
	base.Batch = consumer.Batch{Size: 10, Wait: time.Millisecond}
	base.Throttle = consumer.Throttle{Count: 5, Per: time.Second}
	require.Equal(t, base, consumer.Settings{}.Over(base))

	got := consumer.Settings{
		Retry: consumer.Retry{Attempts: 9}, Batch: consumer.Batch{Size: 20}, Throttle: consumer.Throttle{Count: 6},
	}.Over(base)
	want := base
	want.Retry.Attempts, want.Batch.Size, want.Throttle.Count = 9, 20, 6
	require.Equal(t, want, got)
}

func TestSettingsThatCannotWorkAreRefusedAllAtOnce(t *testing.T) {
	t.Parallel()
	require.NoError(t, consumer.Settings{}.Validate())
	for want, s := range map[string]consumer.Settings{
		"concurrency":      {Concurrency: -1},
		"retry.attempts":   {Retry: consumer.Retry{Attempts: 101}},
		"retry.initial":    {Retry: consumer.Retry{Initial: time.Microsecond}},
		"retry.max":        {Retry: consumer.Retry{Initial: time.Minute}},
		"retry.multiplier": {Retry: consumer.Retry{Multiplier: 0.5}},
		"retry.jitter":     {Retry: consumer.Retry{Jitter: 2}},
		"timeout":          {Timeout: time.Microsecond},
		"batch":            {Batch: consumer.Batch{Size: 2}},
		"throttle":         {Throttle: consumer.Throttle{Count: 2}},
		"circuit_breaker":  {CircuitBreaker: consumer.CircuitBreaker{Failures: 2}},
	} {
		require.ErrorContains(t, s.Validate(), want)
	}
	err := consumer.Settings{Concurrency: -1, Timeout: time.Microsecond}.Validate()
	require.ErrorContains(t, err, "concurrency")
	require.ErrorContains(t, err, "timeout")
}

func TestRegisterRefusesWithoutPanic(t *testing.T) {
	t.Parallel()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	good := consumer.Consumer{Name: name, Topic: topic, Handlers: map[string]consumer.Handler{tipo: effect}}
	deps := consumer.Deps{Drain: consumer.NewDrain()}
	require.NoError(t, consumer.Register(router, &feed{}, good, deps))
	require.ErrorContains(t, consumer.Register(router, &feed{}, good, deps), name, "the name is taken")
	require.Error(t, consumer.Register(router, &feed{}, consumer.Consumer{Name: "b", Topic: topic}, deps), "no handlers")
	other := good
	other.Name = "c"
	require.Error(t, consumer.Register(router, &feed{}, other, consumer.Deps{}), "no drain")
}
