package lifecycle_test

import (
	"context"
	"fmt"
	"time"

	"km0/platform/lifecycle"
)

func Example() {
	part := func(name string) lifecycle.Component {
		return lifecycle.Component{
			Name:  name,
			Start: func(context.Context) error { fmt.Println("start", name); return nil },
			Stop:  func(context.Context) error { fmt.Println("stop", name); return nil },
		}
	}
	relay := part("relay")
	died := make(chan error, 1)
	relay.Failed = died

	ctx, stop := lifecycle.Signals(context.Background(), nil)
	defer stop()
	process := lifecycle.New(nil, part("databases"), relay, part("http"))
	if err := process.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	died <- fmt.Errorf("out of memory") // or a signal
	fmt.Println(process.Wait(ctx))

	drain, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	fmt.Println(process.Stop(drain))
	// Output:
	// start databases
	// start relay
	// start http
	// relay failed: out of memory
	// stop http
	// stop relay
	// stop databases
	// <nil>
}
