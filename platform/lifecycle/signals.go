package lifecycle

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Signals returns a context that ends at the first SIGINT or SIGTERM (its cause
// names the signal) or with parent. Each further signal calls hard at once,
// from another goroutine; nil is os.Exit with the shell's code for the signal,
// 130 or 143.
//
// stop gives the signals back to the system, ends the context, and returns when
// hard is not and will not be running; it may be called more than once, but not
// from hard.
func Signals(parent context.Context, hard func()) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	arrived := make(chan os.Signal, 2)
	signal.Notify(arrived, os.Interrupt, syscall.SIGTERM)

	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for first := true; ; first = false {
			select {
			case s := <-arrived:
				switch {
				case first:
					cancel(fmt.Errorf("received %s", s))
				case hard != nil:
					hard()
				default:
					os.Exit(exitCode(s))
				}
			case <-over:
				return
			}
		}
	}()

	var once sync.Once
	return ctx, func() {
		once.Do(func() {
			signal.Stop(arrived)
			close(over)
		})
		<-ended
		cancel(context.Canceled)
	}
}

func exitCode(s os.Signal) int {
	if number, ok := s.(syscall.Signal); ok {
		return 128 + int(number)
	}
	return 1
}
