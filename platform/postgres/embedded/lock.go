package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const pollEvery = 5 * time.Millisecond

// lockState makes this program the only one on the state folder, until the file
// is closed or the program ends.
func lockState(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the state folder: %w: run km0 as the user who made the folder, or choose another one with --state", err)
	}
	if err := tryLock(f); err != nil {
		defer f.Close()
		if errors.Is(err, errLocked) {
			return nil, &InUseError{Dir: dir, PID: holder(f)}
		}
		return nil, err
	}
	if err := sign(f, strconv.Itoa(os.Getpid())+"\n"); err != nil {
		f.Close()
		return nil, fmt.Errorf("write pid into the lock: %w", err)
	}
	return f, nil
}

func sign(f *os.File, text string) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// holder reads who has the lock. The one who has just taken it may not have signed
// yet, and the file may still name its dead predecessor: hence the short wait.
func holder(f *os.File) int {
	for range 20 {
		text := make([]byte, 20)
		n, _ := f.ReadAt(text, 0)
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text[:n]))); err == nil {
			if _, runs := lookUp(pid); runs {
				return pid
			}
		}
		time.Sleep(pollEvery)
	}
	return 0
}

// How long a server that was left behind may take: a fast shutdown writes a
// checkpoint; after an immediate one, or a kill, the next start recovers from the
// write-ahead log. Neither loses anything.
const (
	orphansAlone = 500 * time.Millisecond // without their postmaster
	quitAfter    = 4 * time.Second
	killAfter    = 6 * time.Second
	giveUpAfter  = 8 * time.Second
)

// claimCluster returns when no process of an earlier run works on the cluster, and
// keeps it so until the returned file is closed and the processes that inherited
// it have ended.
func claimCluster(ctx context.Context, dir, data, tag string, log *slog.Logger) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "postgres.lock"), os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the cluster: %w", err)
	}
	if err := awaitLeftover(ctx, f, data, tag, log); err != nil {
		f.Close()
		return nil, err
	}
	if err := clearPidfile(data); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// awaitLeftover waits for the lock and speeds up those who hold it.
func awaitLeftover(ctx context.Context, lock *os.File, data, tag string, log *slog.Logger) error {
	err := tryLock(lock)
	if !errors.Is(err, errLocked) {
		return err
	}
	began := time.Now()
	pids := tagged(tag)
	log.Info("stopping the PostgreSQL that an earlier run left", "data", data, "pids", pids)
	if pf, err := readPidfile(data); err == nil && slices.Contains(pids, pf.pid) {
		signal(syscall.SIGINT, pf.pid)
	} else {
		began = began.Add(orphansAlone - quitAfter)
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for quit, kill := false, false; ; {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the PostgreSQL that an earlier run left: %w", context.Cause(ctx))
		case <-tick.C:
		}
		if err := tryLock(lock); !errors.Is(err, errLocked) {
			return err
		}
		switch waited := time.Since(began); {
		case waited > giveUpAfter:
			return fmt.Errorf("processes %v of an earlier run still work on %s and cannot be stopped: end them, then start again", tagged(tag), data)
		case waited > killAfter && !kill:
			kill = true
			signal(syscall.SIGKILL, tagged(tag)...)
		case waited > quitAfter && !quit:
			quit = true
			signal(syscall.SIGQUIT, tagged(tag)...)
		}
	}
}

// clearPidfile removes what a killed server left: PostgreSQL itself would take a
// zombie or a reused process id for a running server. The caller holds the lock of
// the cluster, so only a server that somebody started by hand can be alive.
func clearPidfile(data string) error {
	pf, err := readPidfile(data)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	if err == nil {
		if p, runs := lookUp(pf.pid); runs && pf.pid != os.Getpid() && p.serves(data) {
			return fmt.Errorf("a PostgreSQL that km0 did not start (pid %d) runs on %s: stop it (kill -INT %d), or choose another folder with --state", pf.pid, data, pf.pid)
		}
	}
	if err := os.Remove(pidfilePath(data)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the mark of an ended server: %w", err)
	}
	return nil
}
