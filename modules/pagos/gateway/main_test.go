package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"km0/modules/pagos/gateway"
)

// childLedger makes the test binary a simulator process on that file.
const childLedger = "KM0_TEST_GATEWAY_LEDGER"

func TestMain(m *testing.M) {
	if path := os.Getenv(childLedger); path != "" {
		fmt.Fprintln(os.Stderr, simulate(path))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// simulate serves until it is killed; its first line of output is the URL.
func simulate(path string) error {
	s, err := gateway.OpenSimulator(path, gateway.Options{})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + l.Addr().String())
	return errors.Join(s.Serve(context.Background(), l), s.Close())
}

// ample is for calls that must not time out, on a machine that is busy.
const ample = time.Minute

// rig is a simulator behind a real listener and a client of it.
type rig struct {
	*gateway.Client
	sim *gateway.Simulator
	url string
}

func start(t testing.TB, opts gateway.Options) *rig {
	return startOn(t, filepath.Join(t.TempDir(), "gateway.db"), opts, ample)
}

func startOn(t testing.TB, path string, opts gateway.Options, timeout time.Duration) *rig {
	t.Helper()
	sim, err := gateway.OpenSimulator(path, opts)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- sim.Serve(ctx, l) }()
	url := "http://" + l.Addr().String()
	client := dial(t, url, timeout)
	t.Cleanup(func() {
		client.Close()
		cancel()
		require.NoError(t, <-served)
		require.NoError(t, sim.Close())
	})
	return &rig{Client: client, sim: sim, url: url}
}

func dial(t testing.TB, url string, timeout time.Duration) *gateway.Client {
	t.Helper()
	c, err := gateway.NewClient(url, timeout)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func cobro(clave string) gateway.Cobro {
	return gateway.Cobro{Clave: clave, PedidoID: "P-" + clave, Tarjeta: "tok_ana_4242", ImporteCentimos: 1250}
}

func declined(clave string) gateway.Cobro {
	c := cobro(clave)
	c.Tarjeta = "tok_rechazada_4242"
	return c
}

// entries is the ledger by key.
func (r *rig) entries(t require.TestingT) map[string]gateway.Asiento {
	found := map[string]gateway.Asiento{}
	require.NoError(t, r.sim.Entries(func(a gateway.Asiento) error {
		found[a.Clave] = a
		return nil
	}))
	return found
}

func (r *rig) resumen(t require.TestingT) gateway.Resumen {
	totals, err := r.Resumen(context.Background())
	require.NoError(t, err)
	return totals
}
