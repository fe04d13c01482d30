package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	socketPort = "5432" // only part of the socket's name
	longest    = 103    // bytes of a socket's path: macOS; Linux allows 107
	tempPrefix = "km0-pg-"
)

// plain paths need no quoting in a DSN, where a comma would also part two hosts.
var plain = regexp.MustCompile(`^[A-Za-z0-9/._+~@:-]+$`)

func socketFits(dir string) bool {
	return len(dir)+len("/.s.PGSQL."+socketPort) <= longest && plain.MatchString(dir)
}

// socketDir makes an empty private folder for the socket: below the state folder
// if the path is short enough, else a temporary one, which is noted in the state
// folder so that the next start can remove what a killed program left.
func socketDir(dir string, who account) (path string, remove func(), err error) {
	note := filepath.Join(dir, "socket.path")
	if left, err := os.ReadFile(note); err == nil {
		removeTemporary(string(left))
	}
	path = filepath.Join(dir, "socket")
	if err := os.RemoveAll(path); err != nil {
		return "", nil, fmt.Errorf("remove the old socket: %w", err)
	}
	if socketFits(path) {
		if err := who.own(path); err != nil {
			return "", nil, err
		}
		return path, func() { _ = os.RemoveAll(path) }, nil // the next start removes it too
	}
	if path, err = temporary(who); err != nil {
		return "", nil, err
	}
	remove = func() {
		removeTemporary(path)
		_ = os.Remove(note) // names a folder that is gone: harmless
	}
	if err = os.WriteFile(note, []byte(path), 0o644); err == nil {
		err = who.take(path)
	}
	if err != nil {
		remove()
		return "", nil, fmt.Errorf("prepare the folder of the socket: %w", err)
	}
	return path, remove, nil
}

func temporary(who account) (string, error) {
	var problems []error
	for _, base := range []string{os.TempDir(), "/tmp"} {
		base, err := filepath.EvalSymlinks(base)
		if err == nil {
			err = who.canEnter(base)
		}
		if err == nil && !socketFits(filepath.Join(base, tempPrefix+"1234567890")) {
			err = fmt.Errorf("the path %s is too long or too odd for a socket", base)
		}
		if err == nil {
			var path string
			if path, err = os.MkdirTemp(base, tempPrefix); err == nil {
				return path, nil
			}
		}
		problems = append(problems, err)
	}
	return "", fmt.Errorf("no short folder for the socket: choose a shorter state folder with --state: %w", errors.Join(problems...))
}

// removeTemporary removes only what looks like a folder of socketDir's: its name
// comes from a file.
func removeTemporary(path string) {
	if !filepath.IsAbs(path) || !strings.HasPrefix(filepath.Base(path), tempPrefix) {
		return
	}
	for _, name := range []string{".s.PGSQL." + socketPort, ".s.PGSQL." + socketPort + ".lock"} {
		if err := os.Remove(filepath.Join(path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return
		}
	}
	_ = os.Remove(path) // not ours if anything else is in it
}
