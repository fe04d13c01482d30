package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"km0/app/demo"
	"km0/platform/lifecycle"
)

func demoCommand() *cobra.Command {
	opts := demo.Options{Progress: os.Stderr, Bin: os.Getenv("KM0_POSTGRES_BIN")}
	var asJSON bool
	cmd := &cobra.Command{
		Use: "demo", Short: "A bad day on a throw-away state, and the books at its end", Args: noArgs,
		Long: "Places orders at a live rate, delivers a tenth of the events twice, lets a tenth of the charges fail for a\n" +
			"while, publishes malformed messages, kills the worker process half way, and then reconciles orders, events,\n" +
			"stock and money. The exit code is 0 only if every invariant holds.",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if opts.Orders < 10 || opts.Rate < 1 {
				return usageError{errors.New("--orders must be at least 10 and --rate at least 1")}
			}
			if opts.Binary, err = os.Executable(); err != nil {
				return fmt.Errorf("find the program to run as the worker: %w", err)
			}
			ctx, release := lifecycle.Signals(cmd.Context(), nil)
			defer release()
			result, err := demo.Run(ctx, opts)
			if err != nil {
				return fmt.Errorf("demo: %w", err)
			}
			if asJSON {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(result)
			} else {
				err = printDemo(cmd.OutOrStdout(), result)
			}
			if err == nil && !result.OK {
				err = errors.New("demo: the books do not balance")
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&opts.Orders, "orders", 500, "how many")
	flags.IntVar(&opts.Rate, "rate", 100, "orders a second")
	flags.StringVar(&opts.State, "state", "", "folder to work in, empty or not there yet; removed at the end (a temporary one)")
	flags.BoolVar(&opts.Keep, "keep", false, "keep the folder")
	flags.DurationVar(&opts.Settle, "settle", 2*time.Minute, "longest wait for everything to be done")
	flags.BoolVar(&asJSON, "json", false, "print the result for programs")
	return cmd
}

func printDemo(out io.Writer, r demo.Result) error {
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	row := func(name string, value any) { _, _ = fmt.Fprintf(t, "%s\t%v\n", name, value) }
	c := r.Counts
	row("orders accepted", fmt.Sprintf("%d (%d paid, %d cancelled, %d by their clients)", r.Orders, c.Orders["pagado"], c.Orders["cancelado"], r.Cancelled))
	row("requests repeated while the worker was away", r.Repeats)
	row("worker killed", r.WorkerKills)
	row("events written / published", fmt.Sprintf("%d / %d (%d of them twice)", c.Events, c.Published, c.Duplicates))
	row("stock moved / given back", fmt.Sprintf("%d / %d units", c.StockMoved, c.StockBack))
	row("charged / refunded", fmt.Sprintf("%d.%02d / %d.%02d €", c.Charged/100, c.Charged%100, c.Refunded/100, c.Refunded%100))
	row("gateway failures", r.GatewayFails)
	for _, class := range slices.Sorted(maps.Keys(c.DeadLetters)) {
		row("dead letters "+class, c.DeadLetters[class])
	}
	row("seconds", fmt.Sprintf("%.1f", r.Seconds))
	_, _ = fmt.Fprintln(t)
	for _, check := range r.Checks {
		if check.OK {
			row("ok      "+check.Name, "")
		} else {
			row("FAILED  "+check.Name, fmt.Sprintf("want %s, got %s", check.Want, check.Got))
		}
	}
	return t.Flush()
}
