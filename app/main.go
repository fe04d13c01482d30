package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"km0/app/config"
)

// Main runs the command line and returns the exit code: 0, 1 for a failure, 2
// for a wrong command line.
func Main(args []string) int {
	root := rootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "km0: %v\nTry: km0 --help\n", err)
		return 2
	}
	fmt.Fprintf(os.Stderr, "km0: %v\n", err)
	return 1
}

// usageError is a command line that cannot be understood.
type usageError struct{ error }

func rootCommand() *cobra.Command {
	serve := serveCommand()
	root := &cobra.Command{
		Use:   "km0",
		Short: "The event backbone of Kilómetro Cero",
		Long: "km0 hosts the modules pedidos, inventario and pagos and makes them talk so that no order is lost\n" +
			"and none is applied twice. Without a command it serves.",
		Args:          noArgs,
		RunE:          serve.RunE,
		SilenceErrors: true, SilenceUsage: true,
	}
	configFlags(root.Flags())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(serve, gatewayCommand(), demoCommand(), versionCommand())
	return root
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unknown command %q", args[0])}
	}
	return nil
}

// configFlags adds the flags of the configuration.
func configFlags(flags *pflag.FlagSet) {
	flags.String("config", "", "configuration file (KM0_CONFIG)")
	for _, s := range config.Settings {
		if s.Flag != "" {
			flags.String(s.Flag, "", fmt.Sprintf("%s (%s)", s.Usage, s.Env))
		}
	}
}

func loadConfig(flags *pflag.FlagSet) (config.Config, error) {
	path, _ := flags.GetString("config")
	if path == "" {
		path = os.Getenv("KM0_CONFIG")
	}
	given := map[string]string{}
	flags.Visit(func(f *pflag.Flag) { given[f.Name] = f.Value.String() })
	return config.Load(path, os.Environ(), given)
}

func newLogger(w io.Writer, c config.Log) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // checked with the configuration
	opts := &slog.HandlerOptions{Level: level}
	if c.Format == "text" {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "km0", version())
			return err
		},
	}
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
