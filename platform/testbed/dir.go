package testbed

import (
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

const (
	lockFile = "lock"
	prefix   = "km0-test-"
)

// Dir makes an empty folder for one test and removes it at its end. Unlike
// that of t.TempDir it can be reached by the unprivileged user that
// PostgreSQL runs as when tests run as root, and its path is short enough for
// a socket.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := newDir()
	if err != nil {
		t.Fatalf("temporary folder: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func newDir() (string, error) {
	base, err := processDir()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(base, "")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

// processDir is the one folder of this process. Its lock file stays locked
// while the process lives, which also holds between containers that share a
// temporary folder but not their process numbers.
var processDir = sync.OnceValues(func() (string, error) {
	removeAbandoned()
	// Made under another name and renamed once locked, so that nobody takes it
	// for abandoned in between.
	dir, err := os.MkdirTemp("", ".km0-new-")
	if err != nil {
		return "", err
	}
	lock, err := os.Create(filepath.Join(dir, lockFile))
	if err != nil {
		return "", err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return "", err
	}
	final := filepath.Join(filepath.Dir(dir), prefix+filepath.Base(dir)[len(".km0-new-"):])
	if err := os.Rename(dir, final); err != nil {
		return "", err
	}
	AtEnd(func() error {
		defer lock.Close()
		return os.RemoveAll(final)
	})
	return final, nil
})

// removeAbandoned removes the folders of test processes that were killed.
func removeAbandoned() {
	folders, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, folder := range folders {
		lock, err := os.Open(filepath.Join(folder, lockFile))
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(folder)
		}
		lock.Close()
	}
}
