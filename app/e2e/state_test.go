package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/modules/pagos/gateway"
	pedidos "km0/modules/pedidos/contract"
	"km0/platform/testbed"
)

// finalState is what must not depend on how often events were delivered.
func (s *system) finalState(t *testing.T) (state []string) {
	t.Helper()
	for _, q := range []struct {
		pool  *pgxpool.Pool
		query string
	}{
		{s.pools.Pedidos, `SELECT format('%s %s %s', pedido_id, orden, estado) FROM historial_pedido WHERE pedido_id NOT IN (
			SELECT pedido_id FROM historial_pedido WHERE estado = 'cancelado') ORDER BY 1`},
		{s.pools.Pedidos, `SELECT format('%s %s', id, estado) FROM pedidos ORDER BY 1`},
		{s.pools.Inventario, `SELECT format('%s %s', producto, unidades) FROM stock ORDER BY 1`},
		{s.pools.Pagos, `SELECT format('%s %s', pedido_id, importe) FROM pagos WHERE estado = 'cobrado' ORDER BY 1`},
	} {
		rows, err := q.pool.Query(t.Context(), q.query)
		require.NoError(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		state = append(state, lines...)
	}
	return state
}

func TestEveryEventTwiceLeavesTheSameState(t *testing.T) {
	t.Parallel()
	states := map[string][]string{}
	for _, duplicates := range []string{"0", "1"} {
		s := newSystem(t, gateway.Options{})
		p := s.start(t, "KM0_BUS_DUPLICATES="+duplicates)
		// Plenty for all: which order gets the last piece would be chance.
		_, err := s.pools.Inventario.Exec(t.Context(), `UPDATE stock SET unidades = 10000`)
		require.NoError(t, err)
		s.stock["queso-curado"] = 10000
		load(t, at(p), orders)()
		report := s.balanced(t, orders)
		if duplicates == "1" {
			require.Equal(t, 2*report.Counts.Events, report.Counts.Published)
			// The inbox absorbed them: the modules would, too, which would hide its loss.
			require.GreaterOrEqual(t, metric(t, p, `km0_consumer_deliveries_total{consumer="inventario.descuento_stock",outcome="duplicado"}`), float64(orders))
		}
		states[duplicates] = s.finalState(t)
		p.stop()
	}
	require.Equal(t, states["0"], states["1"])
}

// TestTheLastUnitIsSoldOnce is case C26.
func TestTheLastUnitIsSoldOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t, gateway.Options{})
	a, b := s.start(t), s.start(t)
	_, err := s.pools.Inventario.Exec(t.Context(), `UPDATE stock SET unidades = 1 WHERE producto = 'queso-curado'`)
	require.NoError(t, err)
	s.stock["queso-curado"] = 1
	w := at(a, b)
	failures := make(chan error, 50)
	for i := range 50 {
		go func() {
			failures <- post(t.Context(), w, i, "/pedidos", pedidos.Pedido{
				ID: fmt.Sprintf("P-%d", i), Cliente: "ana", Mercado: "girona", Tarjeta: fmt.Sprintf("tok_%d", i),
				Lineas: []pedidos.Linea{{Producto: "queso-curado", Cantidad: 1, PrecioCentimos: 1450}},
			})
		}()
	}
	for range 50 {
		require.NoError(t, <-failures)
	}
	report := s.balanced(t, 50)
	require.Equal(t, int64(1), report.Counts.Orders["pagado"])
	require.Equal(t, int64(49), report.Counts.Orders["cancelado"])
	require.Equal(t, int64(1450), report.Counts.Charged-report.Counts.Refunded)
	var rejected int
	require.NoError(t, s.pools.Inventario.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE tipo = 'stock.insuficiente'`).Scan(&rejected))
	require.Equal(t, 49, rejected)
	var left, withoutStock int
	require.NoError(t, s.pools.Inventario.QueryRow(t.Context(), `SELECT unidades FROM stock WHERE producto = 'queso-curado'`).Scan(&left))
	require.Zero(t, left)
	require.NoError(t, s.pools.Pedidos.QueryRow(t.Context(), `SELECT count(*) FROM pedidos WHERE estado = 'cancelado' AND motivo = 'sin_stock'`).Scan(&withoutStock))
	require.Equal(t, 49, withoutStock)
	a.stop()
	b.stop()
}

func TestAGracefulStopUnderLoadBreaksNothingOff(t *testing.T) {
	t.Parallel()
	s := newSystem(t, gateway.Options{Latency: 50 * time.Millisecond})
	p := s.start(t)
	w := at(p)
	wait := load(t, w, orders)
	testbed.Eventually(t, 30*time.Second, func() bool {
		var n int
		require.NoError(t, s.pools.Pagos.QueryRow(t.Context(), `SELECT count(*) FROM pagos`).Scan(&n))
		return n > 5
	}, "payments are under way")
	p.stop()
	again := s.start(t)
	w.move(again)
	wait()
	s.balanced(t, orders)
	// What was in flight was finished and acknowledged: nothing came twice.
	require.Zero(t, metric(t, again, `km0_consumer_deliveries_total{consumer="pagos.cobro",outcome="duplicado"}`))
	again.stop()
}

// embedded runs km0 with nothing but a state folder.
func embedded(t *testing.T, credential *syscall.Credential, state string, env ...string) *process {
	t.Helper()
	return launch(t, credential, append(env, "KM0_STATE="+state, "HOME="+filepath.Dir(state))...)
}

func TestThePrivateStateSurvivesAKillAndRefusesASecondInstance(t *testing.T) {
	t.Parallel()
	for name, credential := range users(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := testbed.Dir(t)
			if credential != nil {
				require.NoError(t, os.Chown(dir, int(credential.Uid), int(credential.Gid)))
			}
			state := filepath.Join(dir, "state")
			first := embedded(t, credential, state)
			first.waitReady()
			order, _ := invented(0)
			require.NoError(t, post(t.Context(), at(first), 0, "/pedidos", order))
			require.Equal(t, "pagado", becomes(t, first, order.ID, "pagado"))

			second := embedded(t, credential, state)
			<-second.exited
			require.ErrorContains(t, second.err, "exit status 1")
			require.Contains(t, second.stderr.String(), state)

			next, _ := invented(1)
			require.NoError(t, post(t.Context(), at(first), 0, "/pedidos", next))
			first.kill()
			started := time.Now()
			third := embedded(t, credential, state)
			third.waitReady()
			t.Logf("ready %s after kill -9", time.Since(started).Round(time.Millisecond))
			require.Equal(t, "pagado", becomes(t, third, order.ID, "pagado"))
			require.Equal(t, "pagado", becomes(t, third, next.ID, "pagado"))
			if runtime.GOOS == "linux" {
				require.NotEmpty(t, servers(t, state), "or the next line sees nothing")
			}
			third.stop()
			require.Empty(t, servers(t, state), "a stopped km0 leaves no server behind")
		})
	}
}

// servers are the processes that name a state folder, where there is /proc.
func servers(t *testing.T, state string) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(line), state) { // an error: it has ended
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// users are those km0 is tried as: this one, and nobody if this one is root.
func users(t *testing.T) map[string]*syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return map[string]*syscall.Credential{"as an ordinary user": nil}
	}
	return map[string]*syscall.Credential{"as root": nil, "as an ordinary user": {Uid: 65534, Gid: 65534}}
}

// becomes waits until an order is in a state.
func becomes(t *testing.T, p *process, id, estado string) (is string) {
	t.Helper()
	testbed.Eventually(t, 20*time.Second, func() bool {
		res, err := client.Get(p.api + "/pedidos/" + id)
		if err != nil || res.StatusCode != http.StatusOK {
			return false
		}
		defer func() { _ = res.Body.Close() }()
		var view struct{ Estado string }
		require.NoError(t, json.NewDecoder(res.Body).Decode(&view))
		is = view.Estado
		return is == estado
	}, "order %s becomes %s", id, estado)
	return is
}

func TestATakenPortIsOneClearLineBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	s := newSystem(t, gateway.Options{})
	p := s.start(t)
	path, err := binary()
	require.NoError(t, err)
	state := filepath.Join(testbed.Dir(t), "state")
	cmd := exec.Command(path, "--http", p.api[len("http://"):], "--state", state)
	out, err := cmd.CombinedOutput()
	require.ErrorContains(t, err, "exit status 1")
	require.Regexp(t, `^km0: address 127\.0\.0\.1:\d+ is taken by another program: stop it, or choose another address with --http\n$`, string(out))
	require.NoDirExists(t, state)
	p.stop()
}
