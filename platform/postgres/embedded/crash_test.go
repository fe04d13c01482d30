package embedded

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// quick is three times what a start after a kill may take (10 s): tests share the
// machine.
const quick = 30 * time.Second

func rowsSurvive(t *testing.T, dir string, acked int64) {
	t.Helper()
	began := time.Now()
	s := started(t, Config{Dir: dir})
	t.Logf("start after the kill: %v", time.Since(began))
	require.Less(t, time.Since(began), quick)
	require.GreaterOrEqual(t, query[int64](t, s, "SELECT count(*) FROM filas"), acked)
}

func TestProgramKilledLosesNothingAndBlocksNothing(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	k := startChild(t, dir)
	k.awaitRows(t, 200)
	k.kill(t)
	rowsSurvive(t, dir, k.acked)
}

func TestServerStopsByItselfWhenTheProgramIsKilled(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	k := startChild(t, dir)
	k.awaitRows(t, 10)
	if !stopsWithParent {
		t.Skip("the system cannot signal the children of a killed program")
	}
	k.kill(t)
	require.Eventually(t, func() bool { return len(tagged(tagOf(filepath.Join(dir, "postgres")))) == 0 }, quick, 5*time.Millisecond)
	require.NoFileExists(t, filepath.Join(dir, "postgres", "postmaster.pid"), "a clean shutdown")
}

func TestServerKilledClosesDoneAndLosesNothing(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	s, err := Start(t.Context(), Config{Dir: dir})
	require.NoError(t, err)
	execute(t, s, "CREATE TABLE filas AS SELECT generate_series(1, 1000) AS n")
	require.NoError(t, syscall.Kill(s.PID(), syscall.SIGKILL))
	closed(t, s.Done())
	_, err = Start(t.Context(), Config{Dir: dir})
	var inUse *InUseError
	require.ErrorAs(t, err, &inUse, "the folder belongs to the Server until Stop")
	require.NoError(t, s.Stop(t.Context()))
	rowsSurvive(t, dir, 1000)
}

func TestEverythingKilledLosesNothing(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	k := startChild(t, dir)
	k.awaitRows(t, 200)
	pids := tagged(tagOf(filepath.Join(dir, "postgres")))
	require.Contains(t, pids, k.pid)
	require.Greater(t, len(pids), 2, "backends are found too")
	signal(syscall.SIGSTOP, k.cmd.Process.Pid) // it must not see its server go first
	signal(syscall.SIGKILL, pids...)
	k.kill(t)
	rowsSurvive(t, dir, k.acked)
}

// An orphan backend that computes does not notice that its postmaster is gone.
func TestBusyOrphanBackendDoesNotBlock(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	s, err := Start(t.Context(), Config{Dir: dir})
	require.NoError(t, err)
	execute(t, s, "CREATE TABLE filas AS SELECT generate_series(1, 1000) AS n")
	conn, err := pgx.Connect(t.Context(), s.DSN("postgres"))
	require.NoError(t, err)
	busy := make(chan error)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT count(*) FROM generate_series(1, 20000) a, generate_series(1, 20000000) b")
		busy <- err
	}()
	require.Eventually(t, func() bool {
		return query[int](t, s, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT count(*) FROM generate%'") == 1
	}, quick, 10*time.Millisecond)
	require.NoError(t, syscall.Kill(s.PID(), syscall.SIGKILL))
	closed(t, s.Done())
	require.NoError(t, s.Stop(t.Context()))
	rowsSurvive(t, dir, 1000)
	require.Error(t, <-busy)
	conn.Close(context.Background())
}

func TestLeftoverThatIgnoresEverySignalIsKilled(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	k := startChild(t, dir)
	k.awaitRows(t, 50)
	require.NoError(t, syscall.Kill(k.pid, syscall.SIGSTOP))
	t.Cleanup(func() { // should the start fail
		if p, runs := lookUp(k.pid); runs && p.serves(filepath.Join(dir, "postgres")) {
			signal(syscall.SIGKILL, k.pid)
		}
	})
	k.kill(t)
	rowsSurvive(t, dir, k.acked)
}

func TestKilledDuringInitdbBlocksNothing(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	k := startChild(t, dir)
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(dir, "postgres.init", "PG_VERSION"))
		return err == nil
	}, quick, time.Millisecond)
	k.kill(t)
	require.NoDirExists(t, filepath.Join(dir, "postgres"))
	started(t, Config{Dir: dir, Fast: true})
	require.NoDirExists(t, filepath.Join(dir, "postgres.init"))
}

// PostgreSQL itself refuses to start while the process of that id exists.
func TestPidFileOfAReusedIDOrAZombieBlocksNothing(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	s, err := Start(t.Context(), Config{Dir: dir, Fast: true})
	require.NoError(t, err)
	pidfile, err := os.ReadFile(pidfilePath(s.data))
	require.NoError(t, err)
	require.NoError(t, s.Stop(t.Context()))

	other := exec.Command("sleep", "60")
	other.SysProcAttr = s.who.attributes()
	require.NoError(t, other.Start())
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	zombie := exec.Command("true")
	zombie.SysProcAttr = s.who.attributes()
	require.NoError(t, zombie.Start())
	t.Cleanup(func() { _ = zombie.Wait() })
	require.Eventually(t, func() bool { _, runs := lookUp(zombie.Process.Pid); return !runs }, quick, time.Millisecond)

	for _, pid := range []int{other.Process.Pid, zombie.Process.Pid} {
		was := strconv.Itoa(s.PID()) + "\n"
		require.Equal(t, was, string(pidfile[:len(was)]))
		text := append([]byte(strconv.Itoa(pid)+"\n"), pidfile[len(was):]...)
		require.NoError(t, os.WriteFile(pidfilePath(s.data), text, 0o600))
		require.NoError(t, s.who.take(pidfilePath(s.data)))
		again, err := Start(t.Context(), Config{Dir: dir, Fast: true})
		require.NoError(t, err)
		require.NoError(t, again.Stop(t.Context()))
	}
}

func TestServerStartedByHandIsNotTouched(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	s, err := Start(t.Context(), Config{Dir: dir, Fast: true})
	require.NoError(t, err)
	socket := s.socket
	require.NoError(t, s.Stop(t.Context()))

	require.NoError(t, s.who.own(socket))
	byHand := exec.Command(anyProgram(t).program("postgres"), "-D", s.data, "-c", "listen_addresses=", "-c", "unix_socket_directories="+socket)
	byHand.SysProcAttr = s.who.attributes()
	byHand.Dir = "/"
	require.NoError(t, byHand.Start())
	t.Cleanup(func() {
		_ = byHand.Process.Signal(syscall.SIGINT)
		require.NoError(t, byHand.Wait())
	})
	require.Eventually(t, func() bool { pf, err := readPidfile(s.data); return err == nil && pf.ready }, quick, 5*time.Millisecond)

	_, err = Start(t.Context(), Config{Dir: dir})
	require.ErrorContains(t, err, "kill -INT "+strconv.Itoa(byHand.Process.Pid))
	require.Equal(t, 1, query[int](t, s, "SELECT 1"))
}
