package testbed_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"km0/migrations"
	"km0/platform/testbed"
)

// TestChild is the test process that the tests below interrupt.
func TestChild(t *testing.T) {
	if os.Getenv("KM0_TEST_CHILD") == "" {
		t.Skip("only in the child of another test")
	}
	testbed.ModuleDatabase(t, "pedidos", migrations.Pedidos())
	if os.Getenv("KM0_TEST_CHILD_PRIVATE") != "" {
		testbed.PrivatePostgres(t)
	}
	fmt.Println("child is ready")
	if os.Getenv("KM0_TEST_CHILD") == "stay" {
		time.Sleep(time.Hour)
	}
}

// child starts a test process with a temporary folder of its own, and returns
// when its servers run, or when it has ended if it does not stay.
func child(t *testing.T, temp, stay string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.v")
	cmd.Env = append(os.Environ(), append(env, "TMPDIR="+temp, "KM0_TEST_CHILD="+stay)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	var said []string
	for lines.Scan() {
		said = append(said, lines.Text())
		if stay == "stay" && strings.HasSuffix(lines.Text(), "child is ready") {
			return cmd
		}
	}
	require.NoError(t, cmd.Wait(), strings.Join(said, "\n"))
	return cmd
}

// servers are the process numbers of the servers below a temporary folder.
func servers(t *testing.T, temp string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(temp, "*", "*", "*", "postmaster.pid"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		first, _, _ := strings.Cut(string(text), "\n")
		pid, err := strconv.Atoi(first)
		require.NoError(t, err)
		pids = append(pids, pid)
	}
	return pids
}

// alive is false for a zombie, too: reaping it is the work of process 1.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !strings.Contains(string(stat), ") Z ")
}

func contents(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	hidden, err := filepath.Glob(filepath.Join(dir, ".*"))
	require.NoError(t, err)
	return append(names, hidden...)
}

func skipOnAnExistingServer(t *testing.T) {
	if os.Getenv("KM0_TEST_DSN") != "" {
		t.Skip("no server of our own")
	}
}

func TestNothingIsLeftAfterANormalRun(t *testing.T) {
	t.Parallel()
	temp := testbed.Dir(t)
	child(t, temp, "go")
	require.Empty(t, contents(t, temp))
}

func TestNothingIsLeftAfterAnInterrupt(t *testing.T) {
	t.Parallel()
	skipOnAnExistingServer(t)
	temp := testbed.Dir(t)
	cmd := child(t, temp, "stay", "KM0_TEST_CHILD_PRIVATE=1")
	pids := servers(t, temp)
	require.Len(t, pids, 2)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	_ = cmd.Wait()
	require.Equal(t, 130, cmd.ProcessState.ExitCode())
	for _, pid := range pids {
		require.False(t, alive(pid))
	}
	require.Empty(t, contents(t, temp))
}

func TestWhatAKilledRunLeavesIsRemovedByTheNextAndOnlyThat(t *testing.T) {
	t.Parallel()
	skipOnAnExistingServer(t)
	temp := testbed.Dir(t)
	killed, other := child(t, temp, "stay"), child(t, temp, "stay")
	require.Len(t, servers(t, temp), 2)
	before := contents(t, temp)

	require.NoError(t, killed.Process.Kill())
	_ = killed.Wait()
	testbed.Eventually(t, 20*time.Second, func() bool { return len(servers(t, temp)) == 1 }, "the server outlives its process")
	require.Len(t, contents(t, temp), 2)

	child(t, temp, "go")
	left := contents(t, temp)
	require.Len(t, left, 1)
	require.Subset(t, before, left)
	for _, pid := range servers(t, temp) {
		require.True(t, alive(pid))
	}
	require.NoError(t, other.Process.Signal(syscall.SIGTERM))
	_ = other.Wait()
	require.Empty(t, contents(t, temp))
}

func TestAnExistingServerIsUsedAndLeftAsItWas(t *testing.T) {
	t.Parallel()
	server := testbed.PrivatePostgres(t)
	pool := testbed.Pool(t, server.DSN("postgres"))
	const others = `SELECT count(*) FROM pg_database`
	before := value[int](t, pool, others)
	child(t, testbed.Dir(t), "go", "KM0_TEST_DSN="+server.DSN("postgres"))
	require.Equal(t, before, value[int](t, pool, others))

	away := exec.Command(os.Args[0], "-test.run=^TestChild$")
	away.Env = append(os.Environ(), "KM0_TEST_CHILD=go", "KM0_TEST_DSN=host=127.0.0.1 port=1 user=nadie")
	out, err := away.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "127.0.0.1:1")
}
