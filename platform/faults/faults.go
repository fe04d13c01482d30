// Package faults lets a test kill the process at a named point.
//
// Nothing happens unless Arm was called, which only the configuration key
// "faults" (or KM0_FAULTS) does. Disarmed, a point costs one atomic load.
package faults

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// The points, in the order in which an event meets them.
const (
	RelayConfirmed    = "relay.confirmed"    // the bus has the event, the outbox row is not marked
	RelayMarked       = "relay.marked"       // a batch of outbox rows was marked
	ConsumerInTx      = "consumer.in_tx"     // inbox and effect are written, not committed
	ConsumerCommitted = "consumer.committed" // committed, not acknowledged
	BusAcknowledged   = "bus.acknowledged"   // a batch of deliveries was acknowledged
	DeadLetterStored  = "deadletter.stored"  // archived, not acknowledged
	OrderCommitted    = "order.committed"    // an order and its event are committed, the client has no answer
)

var points = []string{RelayConfirmed, RelayMarked, ConsumerInTx, ConsumerCommitted, BusAcknowledged, DeadLetterStored, OrderCommitted}

type trigger struct {
	at   int64
	hits atomic.Int64
}

var armed atomic.Pointer[map[string]*trigger]

// Arm reads a plan such as "relay.confirmed=kill@5,consumer.in_tx=kill@3": the
// process kills itself with SIGKILL at the n-th passage of the point. An empty
// plan disarms. Unknown points and actions are errors.
func Arm(plan string) error {
	triggers, err := parse(plan)
	if err != nil {
		return err
	}
	if len(triggers) == 0 {
		armed.Store(nil)
		return nil
	}
	armed.Store(&triggers)
	return nil
}

// Check says whether Arm would take plan.
func Check(plan string) error {
	_, err := parse(plan)
	return err
}

func parse(plan string) (map[string]*trigger, error) {
	triggers := map[string]*trigger{}
	if strings.TrimSpace(plan) == "" {
		return triggers, nil
	}
	for _, item := range strings.Split(plan, ",") {
		point, action, _ := strings.Cut(strings.TrimSpace(item), "=")
		nth, ok := strings.CutPrefix(action, "kill@")
		n, err := strconv.ParseInt(nth, 10, 64)
		if !ok || err != nil || n < 1 || !known(point) {
			return nil, fmt.Errorf("fault %q: want POINT=kill@N with POINT one of %s", item, strings.Join(Points(), ", "))
		}
		triggers[point] = &trigger{at: n}
	}
	return triggers, nil
}

// Points lists the known points.
func Points() []string {
	sorted := append([]string(nil), points...)
	sort.Strings(sorted)
	return sorted
}

func known(point string) bool {
	for _, p := range points {
		if p == point {
			return true
		}
	}
	return false
}

// Point marks a place in the code. Armed and due, it does not return.
func Point(name string) {
	triggers := armed.Load()
	if triggers == nil {
		return
	}
	t := (*triggers)[name]
	if t == nil || t.hits.Add(1) != t.at {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way
}
