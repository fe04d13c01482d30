package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"km0/app/config"
	"km0/platform/lifecycle"
)

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the modules (the default)", Args: noArgs, Long: serveHelp(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(cmd.Flags())
			if err != nil {
				return err
			}
			a, err := Build(cfg, newLogger(cmd.ErrOrStderr(), cfg.Log))
			if err != nil {
				return err
			}
			a.progress = os.Stderr
			ctx, release := lifecycle.Signals(cmd.Context(), nil)
			defer release()
			return a.run(ctx, cmd.OutOrStdout())
		},
	}
	configFlags(cmd.Flags())
	return cmd
}

// serveHelp lists the variables of the environment: most have no flag.
func serveHelp() string {
	var help strings.Builder
	help.WriteString("Run the modules until SIGINT or SIGTERM; a second signal ends at once.\n\n" +
		"A flag wins over the environment, that over the file, that over the default.\n\nEnvironment:\n")
	for _, s := range config.Settings {
		_, _ = fmt.Fprintf(&help, "  %-26s %s\n", s.Env, s.Usage)
	}
	help.WriteString("  KM0_CONFIG                 configuration file")
	return help.String()
}

// run is the life of a process.
func (a *App) run(ctx context.Context, out io.Writer) error {
	started := time.Now()
	if err := a.Start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop while starting
		}
		return err
	}
	a.greet(out, time.Since(started))
	died := a.Wait(ctx)
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.StopTimeout)
	defer cancel()
	return errors.Join(died, a.Stop(stopping))
}

// greet tells a person what to do next.
func (a *App) greet(out io.Writer, took time.Duration) {
	where := "databases of the configured servers"
	if a.cfg.Embedded() {
		where = "private PostgreSQL in " + filepath.Clean(a.cfg.State)
	}
	_, _ = fmt.Fprintf(out, `km0 is ready after %s.
  API         http://%s  (openapi: /openapi.json)
  Operations  http://%s  (/metrics /healthz /readyz)
  State       %s

`, took.Round(time.Millisecond), a.HTTPAddr(), a.OpsAddr(), where)
	if a.cfg.Hosts("pedidos") {
		_, _ = fmt.Fprintf(out, `Try:
  curl -s http://%[1]s/pedidos -H 'Content-Type: application/json' -d '{"cliente":"ana","mercado":"girona","tarjeta":"tok_ana","lineas":[{"producto":"tomate-rosa","cantidad":2,"precio_centimos":320}],"direccion_entrega":{"ciudad":"Girona","codigo_postal":"17001"}}'
  curl -s 'http://%[1]s/pedidos?limit=1'
`, a.HTTPAddr())
	}
}
