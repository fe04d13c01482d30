package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestStopAndStartKeepsData(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	began := time.Now()
	s, err := Start(t.Context(), Config{Dir: dir})
	require.NoError(t, err)
	t.Logf("cold start: %v", time.Since(began))
	require.NoError(t, s.CreateDatabases(t.Context(), "km0_pedidos", "rara 'y' \\ \"larga\""))
	for _, name := range []string{"km0_pedidos", "rara 'y' \\ \"larga\""} {
		conn, err := pgx.Connect(t.Context(), s.DSN(name))
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), "CREATE TABLE pedidos (id int)")
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), "INSERT INTO pedidos VALUES (7)")
		require.NoError(t, err)
		require.NoError(t, conn.Close(t.Context()))
	}
	began = time.Now()
	require.NoError(t, s.Stop(t.Context()))
	t.Logf("stop: %v", time.Since(began))
	closed(t, s.Done())
	require.NoError(t, s.Stop(t.Context()), "a second Stop")
	require.NoDirExists(t, filepath.Join(dir, "socket"))

	began = time.Now()
	s = started(t, Config{Dir: dir})
	t.Logf("warm start: %v", time.Since(began))
	conn, err := pgx.Connect(t.Context(), s.DSN("km0_pedidos"))
	require.NoError(t, err)
	defer conn.Close(context.Background())
	var id int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT id FROM pedidos").Scan(&id))
	require.Equal(t, 7, id)
}

func TestClusterIsSafeUTF8AndUnreachableForOthers(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	s := started(t, Config{Dir: dir, Params: map[string]string{"work_mem": "7MB"}})
	require.Equal(t, "on", query[string](t, s, "SHOW fsync"))
	require.Equal(t, "on", query[string](t, s, "SHOW full_page_writes"))
	require.Equal(t, "on", query[string](t, s, "SHOW synchronous_commit"))
	require.Equal(t, "on", query[string](t, s, "SHOW data_checksums"))
	require.Equal(t, "UTF8", query[string](t, s, "SHOW server_encoding"))
	require.Equal(t, "7MB", query[string](t, s, "SHOW work_mem"))
	require.Equal(t, "", query[string](t, s, "SHOW listen_addresses"))
	require.Equal(t, "km0", query[string](t, s, "SELECT current_user::text"))
	require.Equal(t, 4, query[int](t, s, "SELECT char_length('año€')"))
	for _, name := range []string{"postgres", "socket"} {
		fi, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o700), fi.Mode().Perm(), name)
	}
	require.FileExists(t, filepath.Join(dir, "postgres.log"))
}

func TestFastGivesUpFsync(t *testing.T) {
	t.Parallel()
	s := started(t, Config{Dir: stateDir(t), Fast: true})
	require.Equal(t, "off", query[string](t, s, "SHOW fsync"))
}

func TestSettingsThatCarryPromisesAreRefused(t *testing.T) {
	t.Parallel()
	for _, name := range reserved {
		dir := stateDir(t)
		_, err := Start(t.Context(), Config{Dir: dir, Params: map[string]string{name: "x"}})
		require.ErrorContains(t, err, name)
		require.NoDirExists(t, dir)
	}
}

func TestWrongSettingIsNamed(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), Config{Dir: stateDir(t), Fast: true, Params: map[string]string{"no_such_setting": "1"}})
	require.ErrorContains(t, err, "no_such_setting")
	require.ErrorContains(t, err, "correct the extra settings")
}

func TestServerSeesNothingOfTheEnvironment(t *testing.T) {
	t.Setenv("PGDATA", "/nonexistent")
	t.Setenv("PGPORT", "1")
	t.Setenv("LC_ALL", "xx_XX.UTF-8")
	t.Setenv("LANG", "xx_XX.UTF-8")
	t.Setenv("SECRETO", "visible")
	s := started(t, Config{Dir: stateDir(t), Fast: true})
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.PID()))
	if err != nil {
		t.Skip("the system does not show environments")
	}
	require.NotContains(t, string(text), "SECRETO")
	require.NotContains(t, string(text), "xx_XX")
	require.NotContains(t, string(text), "PGDATA=/nonexistent")
}

func TestSecondStartIsRefusedWithPidOfHolder(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	s := started(t, Config{Dir: dir, Fast: true})

	began := time.Now()
	_, err := Start(t.Context(), Config{Dir: dir})
	var inUse *InUseError
	require.ErrorAs(t, err, &inUse)
	require.Equal(t, InUseError{Dir: dir, PID: os.Getpid()}, *inUse)
	require.ErrorContains(t, err, fmt.Sprintf("kill %d", os.Getpid()))
	require.ErrorContains(t, err, "--state")
	require.Less(t, time.Since(began), 2*time.Second)
	require.Equal(t, 1, query[int](t, s, "SELECT 1"), "the first server is not harmed")
}

func TestOtherProcessOnTheSameStateIsRefused(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	first := startChild(t, dir)
	first.awaitRows(t, 1)
	_, err := Start(t.Context(), Config{Dir: dir})
	var inUse *InUseError
	require.ErrorAs(t, err, &inUse)
	require.Equal(t, first.cmd.Process.Pid, inUse.PID)
	first.awaitRows(t, first.acked+10)
}

func TestOfConcurrentFirstStartsOneWins(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	var wg sync.WaitGroup
	servers, errs := make([]*Server, 6), make([]error, 6)
	for i := range servers {
		wg.Go(func() { servers[i], errs[i] = Start(t.Context(), Config{Dir: dir, Fast: true}) })
	}
	wg.Wait()
	won := 0
	for i, s := range servers {
		if s != nil {
			won++
			require.Equal(t, 1, query[int](t, s, "SELECT 1"))
			require.NoError(t, s.Stop(t.Context()))
			continue
		}
		var inUse *InUseError
		require.ErrorAs(t, errs[i], &inUse)
	}
	require.Equal(t, 1, won)
}

func TestCreateDatabasesMayRunConcurrently(t *testing.T) {
	t.Parallel()
	s := started(t, Config{Dir: stateDir(t), Fast: true})
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() { errs[i] = s.CreateDatabases(t.Context(), "km0_pedidos", "km0_pagos", "km0_bus") })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, 3, query[int](t, s, "SELECT count(*) FROM pg_database WHERE datname LIKE 'km0\\_%'"))
	require.Error(t, s.CreateDatabases(t.Context(), ""))
	require.Error(t, s.CreateDatabases(t.Context(), strings.Repeat("x", 64)))
}

func TestLongOrOddStatePathGetsATemporarySocket(t *testing.T) {
	t.Parallel()
	for _, name := range []string{strings.Repeat("larga", 24), "con, coma y 'comilla'"} {
		dir := filepath.Join(stateDir(t), name)
		s, err := Start(t.Context(), Config{Dir: dir, Fast: true})
		require.NoError(t, err)
		require.Equal(t, 1, query[int](t, s, "SELECT 1"))
		require.NoDirExists(t, filepath.Join(dir, "socket"))
		socket := s.socket
		fi, err := os.Stat(socket)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o700), fi.Mode().Perm())
		require.NoError(t, s.Stop(t.Context()))
		require.NoDirExists(t, socket)
		require.NoFileExists(t, filepath.Join(dir, "socket.path"))
	}
}

func TestStopWithoutTimeEndsTheServerHardAndLosesNothing(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	s, err := Start(t.Context(), Config{Dir: dir})
	require.NoError(t, err)
	execute(t, s, "CREATE TABLE filas AS SELECT generate_series(1, 1000) AS n")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Stop(ctx); err != nil { // the fast shutdown may win
		require.ErrorIs(t, err, context.Canceled)
	}
	closed(t, s.Done())
	s = started(t, Config{Dir: dir})
	require.Equal(t, 1000, query[int](t, s, "SELECT count(*) FROM filas"))
}

func TestCancelledStartLeavesNothingRunning(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	for _, sign := range []string{"postgres.init", "socket"} {
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() {
			s, err := Start(ctx, Config{Dir: dir, Fast: true})
			if err == nil { // too quick for this test: nothing to prove
				err = errors.Join(context.Canceled, s.Stop(context.Background()))
			}
			failed <- err
		}()
		require.Eventually(t, func() bool {
			_, err := os.Stat(filepath.Join(dir, sign))
			return err == nil
		}, 10*time.Second, time.Millisecond)
		cancel()
		require.ErrorIs(t, <-failed, context.Canceled)
		require.Empty(t, tagged(tagOf(filepath.Join(dir, "postgres"))))
	}
	started(t, Config{Dir: dir, Fast: true})
}

// Ctrl-C reaches every process of the terminal's group: not the server, which
// must outlive those who still drain.
func TestServerIsOutOfReachOfTheTerminal(t *testing.T) {
	t.Parallel()
	s := started(t, Config{Dir: stateDir(t), Fast: true})
	session, err := unix.Getsid(s.PID())
	require.NoError(t, err)
	require.Equal(t, s.PID(), session)
}
