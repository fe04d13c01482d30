package embedded

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// pidfile is what a server tells about itself in its data folder. It is hearsay:
// the process may be gone and its id may be another's.
type pidfile struct {
	pid   int
	ready bool // accepts connections
}

func pidfilePath(data string) string { return filepath.Join(data, "postmaster.pid") }

// readPidfile also returns files that a server is only beginning to write.
func readPidfile(data string) (pidfile, error) {
	text, err := os.ReadFile(pidfilePath(data))
	if err != nil {
		return pidfile{}, err
	}
	lines := strings.Split(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil {
		return pidfile{}, fmt.Errorf("read %s: %w", pidfilePath(data), err)
	}
	const statusLine = 7
	return pidfile{
		pid:   pid,
		ready: len(lines) > statusLine && strings.TrimSpace(lines[statusLine]) == "ready",
	}, nil
}
