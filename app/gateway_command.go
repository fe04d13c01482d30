package app

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"km0/modules/pagos/gateway"
	"km0/platform/lifecycle"
)

func gatewayCommand() *cobra.Command {
	var (
		addr, path string
		opts       gateway.Options
	)
	cmd := &cobra.Command{
		Use: "gateway", Short: "Run the payment gateway simulator by itself", Args: noArgs,
		Long: "A payment gateway with a durable ledger. Cards whose token starts with tok_rechazada are declined.\n" +
			"Point km0 at it with KM0_GATEWAY_URL.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := listen(addr, "--addr")
			if err != nil {
				return err
			}
			return runGateway(cmd, l, path, opts)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&addr, "addr", "127.0.0.1:8082", "address to listen on")
	flags.StringVar(&path, "ledger", "gateway.db", "file of the ledger")
	flags.Float64Var(&opts.Unavailable, "unavailable", 0, "fraction of charges whose first calls get 503")
	flags.IntVar(&opts.UnavailableCalls, "unavailable-calls", 1, "how many of their calls do")
	flags.Float64Var(&opts.Hang, "hang", 0, "fraction of charges that are made but not answered in time")
	flags.DurationVar(&opts.HangFor, "hang-for", 0, "how long such an answer is held back (1m)")
	flags.DurationVar(&opts.Latency, "latency", 0, "of every call")
	flags.DurationVar(&opts.FailFor, "fail-for", 0, "faults end so long after the start (never)")
	return cmd
}

func runGateway(cmd *cobra.Command, l net.Listener, path string, opts gateway.Options) error {
	simulator, err := gateway.OpenSimulator(path, opts)
	if err != nil {
		_ = l.Close()
		return err
	}
	ctx, release := lifecycle.Signals(cmd.Context(), nil)
	defer release()
	if _, err := fmt.Fprintf(cmd.OutOrStdout(), "gateway simulator on http://%s, ledger %s\n", l.Addr(), path); err != nil {
		return err
	}
	served := simulator.Serve(ctx, l)
	if err := simulator.Close(); served == nil {
		return err
	}
	return served
}
