// Package e2e_test runs the real binary, kills it where it hurts, and keeps
// the books afterwards.
package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/app/reconcile"
	"km0/migrations"
	"km0/modules/pagos/gateway"
	"km0/platform/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// binary builds km0 once for all tests, with the race detector if they have it.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "km0-e2e-")
	if err != nil {
		return "", err
	}
	testbed.AtEnd(func() error { return os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // other users run it, too
		return "", err
	}
	path := filepath.Join(dir, "km0")
	args := []string{"build", "-o", path}
	if raceEnabled {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "km0")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

// system is a set of databases and a gateway; processes come and go on it.
type system struct {
	dsns    map[string]string
	pools   reconcile.Databases
	ledger  *gateway.Client
	gateway string
	config  string
	stock   map[string]int64
}

var names = []string{"pedidos", "inventario", "pagos", "bus"}

// quick shortens the waits between attempts.
const quick = "consumers:\n  default:\n    retry: {attempts: 6, initial: 50ms, max: 500ms, multiplier: 2, jitter: 0.2}\n"

func newSystem(t *testing.T, faults gateway.Options) *system {
	t.Helper()
	server := testbed.Postgres(t)
	return systemOn(t, map[string]string{ // migrated copies: the binary finds nothing left to do
		"pedidos":    server.Database(t, testbed.Plataforma(), testbed.Set{Name: "pedidos", Files: migrations.Pedidos()}),
		"inventario": server.Database(t, testbed.Plataforma(), testbed.Set{Name: "inventario", Files: migrations.Inventario()}),
		"pagos":      server.Database(t, testbed.Plataforma(), testbed.Set{Name: "pagos", Files: migrations.Pagos()}),
		"bus":        server.Database(t, testbed.Bus()),
	}, faults)
}

func systemOn(t *testing.T, dsns map[string]string, faults gateway.Options) *system {
	t.Helper()
	s := &system{dsns: dsns}
	for i, pool := range []**pgxpool.Pool{&s.pools.Pedidos, &s.pools.Inventario, &s.pools.Pagos, &s.pools.Bus} {
		*pool = testbed.Pool(t, dsns[names[i]])
	}
	dir := testbed.Dir(t)
	s.config = filepath.Join(dir, "km0.yaml")
	require.NoError(t, os.WriteFile(s.config, []byte(quick), 0o644))

	simulator, err := gateway.OpenSimulator(filepath.Join(dir, "gateway.db"), faults)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() { defer close(served); _ = simulator.Serve(ctx, l) }()
	s.gateway = "http://" + l.Addr().String()
	s.ledger, err = gateway.NewClient(s.gateway, 10*time.Second)
	require.NoError(t, err)
	t.Cleanup(func() {
		s.ledger.Close()
		cancel()
		<-served
		require.NoError(t, simulator.Close())
	})
	return s
}

// process is one km0.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr *syncBuffer
	exited chan struct{}
	err    error // of Wait, once exited
	api    string
	ops    string
}

// syncBuffer embeds nothing: the ReadFrom of a bytes.Buffer would be what
// io.Copy calls, and would not lock.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// start runs km0 on the system's databases and returns when it is ready.
func (s *system) start(t *testing.T, env ...string) *process {
	t.Helper()
	for name, dsn := range s.dsns {
		env = append(env, "KM0_DSN_"+strings.ToUpper(name)+"="+dsn)
	}
	env = append(env, "KM0_CONFIG="+s.config, "KM0_GATEWAY_URL="+s.gateway, "KM0_GATEWAY_TIMEOUT=1s", "KM0_DATABASES_MAX_CONNS=8",
		"KM0_STATE="+filepath.Join(testbed.Dir(t), "state"))
	p := launch(t, nil, env...)
	p.waitReady()
	s.remember(t)
	return p
}

var address = map[string]*regexp.Regexp{
	"api": regexp.MustCompile(`API\s+(http://\S+)`),
	"ops": regexp.MustCompile(`Operations\s+(http://\S+)`),
}

// launch starts the binary, as another user if attr says so.
func launch(t *testing.T, credential *syscall.Credential, env ...string) *process {
	t.Helper()
	path, err := binary()
	require.NoError(t, err)
	p := &process{t: t, cmd: exec.Command(path), stderr: &syncBuffer{}, exited: make(chan struct{})}
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "KM0_HTTP_ADDR=127.0.0.1:0", "KM0_OPS_ADDR=127.0.0.1:0"}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Dir = "/"
	p.cmd.Stderr = p.stderr
	p.cmd.SysProcAttr = bound(credential)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	found := make(chan struct{})
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if m := address["api"].FindStringSubmatch(lines.Text()); m != nil {
				p.api = m[1]
			}
			if m := address["ops"].FindStringSubmatch(lines.Text()); m != nil {
				p.ops = m[1]
				close(found)
			}
		}
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			text := p.stderr.String()
			t.Logf("km0 wrote: %s", text[max(0, len(text)-4000):])
		}
	})
	select {
	case <-found:
	case <-p.exited:
	case <-time.After(60 * time.Second):
		t.Fatalf("km0 is not ready after 60s: %s", p.stderr)
	}
	return p
}

// limit is how long what should take moments may take on a busy machine.
const limit = 30 * time.Second

// waitReady waits until the operations port says so.
func (p *process) waitReady() {
	p.t.Helper()
	testbed.Eventually(p.t, limit, func() bool {
		select {
		case <-p.exited:
			p.t.Fatalf("km0 ended: %v: %s", p.err, p.stderr)
		default:
		}
		return p.ready() == http.StatusOK
	}, "km0 is ready")
}

// ready is the status of /readyz, 0 if there is no answer.
func (p *process) ready() int {
	res, err := client.Get(p.ops + "/readyz")
	if err != nil {
		return 0
	}
	_ = res.Body.Close()
	return res.StatusCode
}

// kill is kill -9.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// stop is SIGTERM, and a clean end.
func (p *process) stop() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.exited:
	case <-time.After(40 * time.Second):
		p.t.Fatalf("km0 does not stop: %s", p.stderr)
	}
	require.NoError(p.t, p.err, "exit code after SIGTERM: %s", p.stderr)
}

// waitKilled waits until the process has killed itself.
func (p *process) waitKilled() {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(60 * time.Second):
		p.t.Fatal("the fault did not strike in 60s")
	}
	var exit *exec.ExitError
	require.True(p.t, errors.As(p.err, &exit), "want a signal, got %v", p.err)
	status := exit.Sys().(syscall.WaitStatus)
	require.True(p.t, status.Signaled() && status.Signal() == syscall.SIGKILL, "want SIGKILL, got %v: %s", exit, p.stderr)
}

// remember notes the stock before the first order.
func (s *system) remember(t *testing.T) {
	t.Helper()
	if s.stock != nil {
		return
	}
	_, err := s.pools.Inventario.Exec(t.Context(), `UPDATE stock SET unidades = 10000 WHERE producto <> 'queso-curado'`)
	require.NoError(t, err)
	s.stock = map[string]int64{}
	rows, err := s.pools.Inventario.Query(t.Context(), `SELECT producto, unidades FROM stock`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var producto string
		var unidades int64
		require.NoError(t, rows.Scan(&producto, &unidades))
		s.stock[producto] = unidades
	}
	require.NoError(t, rows.Err())
}

// settle waits until nothing is left to do.
func (s *system) settle(t *testing.T) {
	t.Helper()
	calm := 0
	testbed.Eventually(t, 60*time.Second, func() bool {
		done, err := reconcile.Settled(t.Context(), s.pools)
		require.NoError(t, err)
		if done {
			calm++
			time.Sleep(30 * time.Millisecond) // an event may be between outbox and bus
		} else {
			calm = 0
		}
		return calm >= 4
	}, "everything is settled")
}

// balanced requires that every invariant holds and that there are n orders.
func (s *system) balanced(t *testing.T, n int) reconcile.Report {
	t.Helper()
	s.settle(t)
	report, err := reconcile.Run(t.Context(), s.pools, s.ledger, s.stock)
	require.NoError(t, err)
	for _, c := range report.Checks {
		require.True(t, c.OK, "%s: want %s, got %s", c.Name, c.Want, c.Got)
	}
	total := int64(0)
	for _, count := range report.Counts.Orders {
		total += count
	}
	require.Equal(t, int64(n), total, "orders")
	require.Zero(t, report.Counts.Orders["creado"], "orders that wait for ever")
	for class, letters := range report.Counts.DeadLetters {
		require.True(t, class == "negocio" || letters == 0, "%d dead letters of class %s: no fault of these tests is a message's own", letters, class)
	}
	return report
}
