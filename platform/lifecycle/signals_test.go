//go:build unix

package lifecycle_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"km0/platform/lifecycle"
)

func TestMain(m *testing.M) {
	if os.Getenv("KM0_TEST_SIGNALS") != "" {
		serveUntilSignalled()
		return
	}
	goleak.VerifyTestMain(m)
}

// serveUntilSignalled is what the test binary does when it is started as the
// process that gets the signals: it drains for ever.
func serveUntilSignalled() {
	ctx, stop := lifecycle.Signals(context.Background(), nil)
	defer stop()
	fmt.Println("ready")
	<-ctx.Done()
	fmt.Println(context.Cause(ctx))
	time.Sleep(time.Hour)
}

func TestTheSecondSignalEndsTheProcessAtOnce(t *testing.T) {
	for signal, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		t.Run(signal.String(), func(t *testing.T) {
			child := exec.Command(os.Args[0])
			child.Env = append(os.Environ(), "KM0_TEST_SIGNALS=1")
			out, err := child.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, child.Start())
			t.Cleanup(func() { _ = child.Process.Kill() })
			lines := bufio.NewScanner(out)
			require.True(t, lines.Scan())
			require.Equal(t, "ready", lines.Text())

			require.NoError(t, child.Process.Signal(signal))
			require.True(t, lines.Scan())
			require.Equal(t, "received "+signal.String(), lines.Text())

			require.NoError(t, child.Process.Signal(signal))
			var exit *exec.ExitError
			require.True(t, errors.As(child.Wait(), &exit))
			require.Equal(t, code, exit.ExitCode())
		})
	}
}

func TestSignalsEndTheContextAndThenCallHard(t *testing.T) {
	hard := make(chan struct{}, 1)
	ctx, stop := lifecycle.Signals(context.Background(), func() { hard <- struct{}{} })
	defer stop()
	require.NoError(t, ctx.Err())

	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	<-ctx.Done()
	require.Empty(t, hard)
	for range 2 {
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGINT))
		<-hard
	}
}

func TestSignalsEndWithTheirParentAndWithStop(t *testing.T) {
	parent, cancel := context.WithCancel(context.Background())
	ctx, stop := lifecycle.Signals(parent, nil)
	cancel()
	<-ctx.Done()
	stop()
	stop()

	ctx, stop = lifecycle.Signals(context.Background(), nil)
	stop()
	require.ErrorIs(t, ctx.Err(), context.Canceled)
}
