package faults_test

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"km0/platform/faults"
)

const child = "KM0_TEST_FAULTS_CHILD"

func TestMain(m *testing.M) {
	if plan := os.Getenv(child); plan != "" {
		if err := faults.Arm(plan); err != nil {
			os.Exit(3)
		}
		for n := 1; n <= 5; n++ {
			faults.Point(faults.RelayMarked) // another point
			faults.Point(faults.RelayConfirmed)
			_, _ = os.Stdout.WriteString("passed\n")
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestAnArmedPointKillsAtItsNthPassage(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), child+"=relay.confirmed=kill@3")
	out, err := cmd.Output()
	var exit *exec.ExitError
	require.True(t, errors.As(err, &exit), "%v", err)
	require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal())
	require.Equal(t, "passed\npassed\n", string(out))
}

func TestAPlanThatIsNotUnderstoodNamesThePoints(t *testing.T) {
	t.Parallel()
	for _, plan := range []string{"x", "relay.confirmed", "relay.confirmed=kill@0", "relay.confirmed=kill@x", "relay.confirmed=stop@1", "relay.nowhere=kill@1"} {
		require.ErrorContains(t, faults.Check(plan), "consumer.in_tx", plan)
	}
	require.NoError(t, faults.Check(""))
	require.NoError(t, faults.Check("relay.confirmed=kill@1, consumer.in_tx=kill@20"))
}

type recorder struct{ ids []string }

func (r *recorder) Publish(_ string, messages ...*message.Message) error {
	for _, m := range messages {
		r.ids = append(r.ids, m.UUID)
	}
	return nil
}

func (r *recorder) Close() error { return nil }

func TestDuplicateSendsTheSameMessageAgain(t *testing.T) {
	t.Parallel()
	var once, twice recorder
	require.NoError(t, faults.Duplicate(&once, 0).Publish("t", message.NewMessage("a", nil)))
	require.NoError(t, faults.Duplicate(&twice, 1).Publish("t", message.NewMessage("a", nil)))
	require.Equal(t, []string{"a"}, once.ids)
	require.Equal(t, []string{"a", "a"}, twice.ids)
}
