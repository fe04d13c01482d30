package gateway_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"km0/modules/pagos/gateway"
)

// child starts a simulator process and returns its URL.
func child(t *testing.T, path string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childLedger+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	url, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return cmd, strings.TrimSpace(url)
}

func TestAKilledSimulatorKeepsEveryAnswerItGave(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gateway.db")
	cmd, url := child(t, path)
	client := dial(t, url, ample)

	const callers, enough = 8, 200
	var (
		mu       sync.Mutex
		receipts = map[string]gateway.Recibo{}     // acknowledged
		refunds  = map[string]gateway.Devolucion{} // acknowledged
		asked    = map[string]bool{}               // answered or not
		answers  atomic.Int64
		once     sync.Once
	)
	kill := func() { once.Do(func() { _ = cmd.Process.Kill() }) } // other callers are in the middle of calls
	defer kill()
	failed := func(err error) {
		kill() // too early, if this one was the first: the checks below say so
		assert.ErrorIs(t, err, gateway.ErrNoDisponible)
	}
	together(callers, func(caller int) {
		for i := 0; ; i++ {
			clave := fmt.Sprintf("cobro-%d-%d", caller, i)
			mu.Lock()
			asked[clave] = true
			mu.Unlock()
			recibo, err := client.Cobrar(t.Context(), cobro(clave))
			if err != nil {
				failed(err)
				return
			}
			mu.Lock()
			receipts[clave] = recibo
			mu.Unlock()
			if answers.Add(1) == enough {
				kill()
			}
			if i%4 != 0 {
				continue
			}
			d, err := client.Anular(t.Context(), clave)
			if err != nil {
				failed(err)
				return
			}
			mu.Lock()
			refunds[clave] = d
			mu.Unlock()
		}
	})
	require.Error(t, cmd.Wait(), "killed")
	require.GreaterOrEqual(t, len(receipts), enough)
	require.NotEmpty(t, refunds)

	r := startOn(t, path, gateway.Options{}, ample)
	entries := r.entries(t)
	for clave, recibo := range receipts {
		require.Equal(t, recibo.Ref, entries[clave].Ref, "an acknowledged charge is in the ledger")
		require.Equal(t, recibo.ImporteCentimos, entries[clave].Importe)
	}
	for clave, d := range refunds {
		require.Equal(t, gateway.Devuelto, entries[clave].Estado)
		require.Equal(t, d.Ref, entries[clave].RefDevolucion)
	}
	for clave := range asked {
		recibo, err := r.Cobrar(t.Context(), cobro(clave))
		require.NoError(t, err)
		if before, known := entries[clave]; known {
			require.Equal(t, before.Ref, recibo.Ref, "a repetition finds the first charge")
		}
	}
	require.Equal(t, int64(len(asked)), r.resumen(t).Cobros, "one charge for each key")
}
