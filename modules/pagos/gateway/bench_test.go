package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkCobrar makes charges, each under a key of its own, over HTTP and
// down to the disk. The peer syncs the ledger for each charge by itself.
func BenchmarkCobrar(b *testing.B) {
	for _, sync := range []struct {
		name  string
		batch int
	}{{"shared sync", 1000}, {"own sync", 1}} {
		for _, callers := range []int{16, 64} {
			b.Run(fmt.Sprintf("%s/%d callers", sync.name, callers), func(b *testing.B) {
				benchmarkCobrar(b, sync.batch, callers)
			})
		}
	}
}

func benchmarkCobrar(b *testing.B, batch, callers int) {
	const charges = 512 // of an iteration
	sim, err := OpenSimulator(filepath.Join(b.TempDir(), "gateway.db"), Options{})
	require.NoError(b, err)
	sim.db.MaxBatchSize = batch
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- sim.Serve(ctx, l) }()
	client, err := NewClient("http://"+l.Addr().String(), 30*time.Second)
	require.NoError(b, err)
	defer func() {
		client.Close()
		cancel()
		require.NoError(b, errors.Join(<-served, sim.Close()))
	}()

	var made atomic.Int64
	failed := make([]error, callers)
	for iteration := int64(1); b.Loop(); iteration++ {
		var running sync.WaitGroup
		for caller := range callers {
			running.Go(func() {
				for range charges / callers {
					c := Cobro{Clave: fmt.Sprintf("cobro-%d", made.Add(1)), PedidoID: "P-1", Tarjeta: "tok_ana", ImporteCentimos: 1250}
					if _, err := client.Cobrar(ctx, c); err != nil {
						failed[caller] = err
						return
					}
				}
			})
		}
		running.Wait()
		require.NoError(b, errors.Join(failed...))
	}
	b.ReportMetric(float64(made.Load())/b.Elapsed().Seconds(), "charges/s")
}
