package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// The test binary is also the program that gets killed: it runs itself with this
// variable set to the state folder.
const childDir = "KM0_EMBEDDED_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(child(dir))
	}
	goleak.VerifyTestMain(m)
}

// child starts a server, says its pid, and then each row that was acknowledged,
// until it is killed or its standard input ends.
func child(dir string) int {
	ctx := context.Background()
	s, err := Start(ctx, Config{Dir: dir})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if _, err := conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS filas (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)"); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("pid", s.PID())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	for {
		select {
		case <-ended:
			conn.Close(ctx)
			if err := s.Stop(ctx); err != nil {
				fmt.Println(err)
				return 1
			}
			return 0
		default:
		}
		var n int64
		if err := conn.QueryRow(ctx, "INSERT INTO filas DEFAULT VALUES RETURNING n").Scan(&n); err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println("row", n)
	}
}

// stateDir is a folder that the server's account can enter, which t.TempDir is
// not for root.
func stateDir(t *testing.T) string {
	t.Helper()
	base, err := os.MkdirTemp("", "km0-embedded-test-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(base)) })
	require.NoError(t, os.Chmod(base, 0o711))
	base, err = filepath.EvalSymlinks(base)
	require.NoError(t, err)
	return filepath.Join(base, "state")
}

// started is a server that is stopped when the test ends.
func started(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	return s
}

func query[T any](t *testing.T, s *Server, sql string) T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.DSN("postgres"))
	require.NoError(t, err)
	defer conn.Close(context.Background())
	var value T
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&value))
	return value
}

func execute(t *testing.T, s *Server, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.DSN("postgres"))
	require.NoError(t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(t.Context(), sql)
	require.NoError(t, err)
}

func closed(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("still open")
	}
}

// anyProgram is a PostgreSQL that is installed here.
func anyProgram(t *testing.T) install {
	t.Helper()
	who, err := chooseAccount("/nonexistent")
	require.NoError(t, err)
	found := defaultSources().installed(t.Context(), who)
	if len(found) == 0 {
		t.Skip("no PostgreSQL is installed")
	}
	return found[0]
}

// killed is the child program and what it said until it was killed.
type killed struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines chan string
	pid   int // of the server
	acked int64
}

func startChild(t *testing.T, dir string) *killed {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, write, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = write, write
	require.NoError(t, cmd.Start())
	write.Close()
	k := &killed{cmd: cmd, stdin: stdin, lines: make(chan string)}
	go func() {
		defer close(k.lines)
		defer out.Close()
		for {
			var word string
			var n int64
			if _, err := fmt.Fscan(out, &word, &n); err != nil {
				rest, _ := io.ReadAll(out)
				if len(rest) > 0 {
					k.lines <- word + string(rest)
				}
				return
			}
			k.lines <- word + " " + strconv.FormatInt(n, 10)
		}
	}()
	t.Cleanup(func() { k.kill(t) })
	return k
}

// next reads one line of the child.
func (k *killed) next(t *testing.T) bool {
	t.Helper()
	select {
	case line, ok := <-k.lines:
		if !ok {
			return false
		}
		var word string
		var n int64
		_, err := fmt.Sscan(line, &word, &n)
		require.NoError(t, err, line)
		if word == "pid" {
			k.pid = int(n)
		} else {
			k.acked = n
		}
		return true
	case <-time.After(30 * time.Second):
		t.Fatal("the child says nothing")
		return false
	}
}

func (k *killed) awaitRows(t *testing.T, n int64) {
	t.Helper()
	for k.acked < n {
		require.True(t, k.next(t), "the child ended too soon")
	}
}

// kill ends the child with -9 and reads the rows that it still got to say.
func (k *killed) kill(t *testing.T) {
	if k.cmd.ProcessState != nil {
		return
	}
	require.NoError(t, k.cmd.Process.Signal(syscall.SIGKILL))
	for k.next(t) {
	}
	var ended *exec.ExitError
	require.True(t, errors.As(k.cmd.Wait(), &ended))
	k.stdin.Close()
}
