package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"km0/modules/pagos/gateway"
	"km0/platform/faults"
)

// rounds is how often each kill test runs: once, or KM0_TEST_SOAK times.
func rounds(t *testing.T) int {
	t.Helper()
	text := os.Getenv("KM0_TEST_SOAK")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "KM0_TEST_SOAK")
	return n
}

const orders = 60

// TestKilledAtAnyPointLosesNothingAndDoublesNothing: the process kills itself
// with SIGKILL at the n-th passage of a point, under load, and is replaced.
func TestKilledAtAnyPointLosesNothingAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for point, most := range map[string]int{
		faults.OrderCommitted:    50,
		faults.RelayConfirmed:    100,
		faults.RelayMarked:       10,
		faults.ConsumerInTx:      100,
		faults.ConsumerCommitted: 100,
		faults.BusAcknowledged:   10,
		faults.DeadLetterStored:  6,
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			for round := range rounds(t) {
				seed := rand.Uint64()
				n := 1 + rand.New(rand.NewPCG(seed, 0)).IntN(most)
				t.Logf("round %d: %s=kill@%d (seed %d)", round, point, n, seed)
				killedAt(t, fmt.Sprintf("%s=kill@%d", point, n))
			}
		})
	}
}

func killedAt(t *testing.T, plan string) {
	t.Helper()
	s := newSystem(t, gateway.Options{Unavailable: 0.1, UnavailableCalls: 1})
	doomed := s.start(t, "KM0_FAULTS="+plan)
	w := at(doomed)
	wait := load(t, w, orders)
	doomed.waitKilled()
	next := s.start(t)
	w.move(next)
	wait()
	s.balanced(t, orders)
	next.stop()
}

func TestKilledAtRandomMomentsLosesNothingAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for round := range rounds(t) {
		s := newSystem(t, gateway.Options{Unavailable: 0.1, UnavailableCalls: 1, Hang: 0.05, HangFor: 3 * time.Second})
		p := s.start(t, "KM0_BUS_DUPLICATES=0.1")
		w := at(p)
		wait := load(t, w, orders)
		for range 3 {
			time.Sleep(time.Duration(50+rand.IntN(400)) * time.Millisecond) // the moment is the point
			p.kill()
			p = s.start(t, "KM0_BUS_DUPLICATES=0.1")
			w.move(p)
		}
		wait()
		report := s.balanced(t, orders)
		t.Logf("round %d: %+v", round, report.Counts)
		p.stop()
	}
}

// TestKilledInstanceIsReplacedByTheOther: two processes share the work, one is
// killed and replaced.
func TestKilledInstanceIsReplacedByTheOther(t *testing.T) {
	t.Parallel()
	for range rounds(t) {
		s := newSystem(t, gateway.Options{})
		a, b := s.start(t), s.start(t)
		w := at(a, b)
		wait := load(t, w, 2*orders)
		time.Sleep(300 * time.Millisecond) // the moment is the point
		a.kill()
		w.move(b)
		a = s.start(t)
		w.move(a, b)
		wait()
		s.balanced(t, 2*orders)
		a.stop()
		b.stop()
	}
}
