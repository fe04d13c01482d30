//go:build unix

package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

var errLocked = errors.New("locked by another process")

// tryLock takes an exclusive lock that lasts until every copy of f is closed,
// those that child processes inherited included.
func tryLock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return errLocked
		default:
			return fmt.Errorf("lock %s: %w: the folder must be on a file system with locks", f.Name(), err)
		}
	}
}

func ownerOf(fi fs.FileInfo) (uid, gid int) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return -1, -1
	}
	return int(st.Uid), int(st.Gid)
}

// attributes detaches a child from the terminal, so that Ctrl-C reaches this
// program alone: the server must outlive the draining of those who use it.
func (a account) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if a.drop {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

// run runs a short-lived command of the account's to its end. It is killed with
// all its children when the context of the command ends, or this program.
func (a account) run(cmd *exec.Cmd) error {
	// dieWithParent is about the thread that forks: no other goroutine may end it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.Dir = "/"
	cmd.Env = environment()
	cmd.SysProcAttr = a.attributes()
	dieWithParent(cmd.SysProcAttr, syscall.SIGKILL)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd.Run()
}

// output is what the command prints; its complaints become part of the error.
func (a account) output(cmd *exec.Cmd) (string, error) {
	var out, complaints strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := a.run(cmd); err != nil {
		return "", fmt.Errorf("%w %s", err, strings.TrimSpace(complaints.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// environment is what the server programs get to see of this program's: neither
// its secrets, nor the settings that libpq or the locale would take from it.
func environment() []string {
	env := []string{"LC_ALL=C", "TZ=UTC"}
	for _, name := range []string{"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

func signal(sig syscall.Signal, pids ...int) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, sig) // gone already, or the wait that follows reports it
	}
}

// process is what the system tells about a process that runs. A zombie does not.
type process struct {
	pid     int
	command string // title, or arguments separated by blanks
	cwd     string // "" when the system does not tell
}

// tagged finds the live processes of the server with this cluster_name.
func tagged(tag string) []int {
	var pids []int
	for _, p := range processes() {
		if strings.Contains(p.command, "cluster_name="+tag) || strings.HasPrefix(p.command, "postgres: "+tag) {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// serves tells whether the process may be a server of the cluster.
func (p process) serves(data string) bool {
	if p.cwd != "" {
		return p.cwd == data
	}
	program, _, _ := strings.Cut(p.command, " ")
	return slices.Contains([]string{"postgres", "postmaster"}, program[strings.LastIndexByte(program, '/')+1:])
}
