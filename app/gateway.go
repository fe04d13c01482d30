package app

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"km0/modules/pagos/gateway"
	"km0/platform/lifecycle"
)

// gatewayComponent connects to the payment gateway, or runs a simulator of it.
func (a *App) gatewayComponent() lifecycle.Component {
	var (
		simulator *gateway.Simulator
		cancel    context.CancelFunc
		served    = make(chan error, 1)
	)
	return lifecycle.Component{
		Name: "gateway", Failed: served,
		Start: func(ctx context.Context) (err error) {
			url := a.cfg.Gateway.URL
			if url == "" {
				if err := os.MkdirAll(a.cfg.State, 0o755); err != nil {
					return fmt.Errorf("state folder: %w", err)
				}
				if simulator, err = gateway.OpenSimulator(filepath.Join(a.cfg.State, "gateway.db"), gateway.Options{}); err != nil {
					return err
				}
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					_ = simulator.Close()
					return fmt.Errorf("gateway simulator: %w", err)
				}
				var running context.Context
				running, cancel = context.WithCancel(context.WithoutCancel(ctx))
				go func() {
					if err := simulator.Serve(running, l); running.Err() == nil {
						served <- err
					}
					close(served)
				}()
				url = "http://" + l.Addr().String()
			}
			a.gateway, err = gateway.NewClient(url, a.cfg.Gateway.Timeout)
			return err
		},
		Stop: func(context.Context) error {
			a.gateway.Close()
			if simulator == nil {
				return nil
			}
			cancel()
			for range served { // until it has ended
			}
			return simulator.Close()
		},
	}
}
