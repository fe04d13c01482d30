// Package testbed gives tests the real thing: a private PostgreSQL for each
// test process, and a fresh, migrated database for each test.
//
// It needs no set-up: the server starts at first use, listens where only this
// machine reaches it, and is gone when the process ends, however it ends. Every
// test package has
//
//	func TestMain(m *testing.M) { testbed.Main(m) }
//
// Environment: KM0_TEST_DSN names an existing server to use instead (a
// superuser's URL; databases called km0_test_* are made and dropped there);
// KM0_TEST_FSYNC=1 makes the private server write as safely as in production.
//
// What a killed test process leaves behind is a folder of temporary files; the
// next test process removes it. All functions are safe for concurrent use and
// fail the test that calls them when something cannot be had.
package testbed

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Main runs the tests of a package, stops and removes what they started, and
// exits. SIGINT and SIGTERM end the tests and clean up as well.
func Main(m *testing.M) {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		s := <-interrupted
		release()
		os.Exit(128 + int(s.(syscall.Signal)))
	}()
	code := m.Run()
	if err := release(); err != nil {
		fmt.Fprintln(os.Stderr, "testbed:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// releases are what Main has to undo, last first.
var releases struct {
	sync.Mutex
	functions []func() error
}

// AtEnd has Main call f when all tests have run, last first.
func AtEnd(f func() error) {
	releases.Lock()
	defer releases.Unlock()
	releases.functions = append(releases.functions, f)
}

func release() (first error) {
	releases.Lock()
	defer releases.Unlock()
	for len(releases.functions) > 0 {
		last := len(releases.functions) - 1
		f := releases.functions[last]
		releases.functions = releases.functions[:last]
		if err := f(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Eventually waits until cond holds, asking every 5 ms on the test's own
// goroutine (so cond may call t.FailNow), and fails the test with msg and its
// arguments after timeout.
func Eventually(t testing.TB, timeout time.Duration, cond func() bool, msg string, args ...any) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", timeout, fmt.Sprintf(msg, args...))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// limited is for the start or stop of a server, the first of which may have to
// fetch PostgreSQL.
func limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 5*time.Minute)
}
