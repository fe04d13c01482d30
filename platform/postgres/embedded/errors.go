package embedded

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// InUseError says that another program, or another [Server] of this one, holds
// the state folder. Nothing was touched.
type InUseError struct {
	Dir string // the state folder
	PID int    // of the holder; 0 if it has not said
}

// Error names the folder, the holder, and the way out.
func (e *InUseError) Error() string {
	holder, remedy := "another km0", "stop it"
	if e.PID > 0 {
		holder = fmt.Sprintf("km0 with pid %d", e.PID)
		remedy = fmt.Sprintf("stop it (kill %d)", e.PID)
	}
	return fmt.Sprintf("state folder %s is in use by %s: %s, or choose another folder with --state", e.Dir, holder, remedy)
}

// remedies explain what PostgreSQL itself says too briefly. They are advice only:
// nothing is decided by these texts.
var remedies = []struct{ said, advice string }{
	{"No space left on device", "free some disk space"},
	{"Disk quota exceeded", "free some disk space, or raise the quota"},
	{"Read-only file system", "choose another folder with --state"},
	{"could not look up effective user ID", "this user id has no entry in /etc/passwd: add one, or run km0 as a user that has one, or as root"},
	{"could not create shared memory segment", "raise the system's limit of shared memory"},
	{"Cannot allocate memory", "free some memory, or lower shared_buffers"},
	{"unrecognized configuration parameter", "correct the extra settings of the private PostgreSQL"},
	{"invalid value for parameter", "correct the extra settings of the private PostgreSQL"},
	{"could not locate a valid checkpoint record", "the cluster is damaged: restore a backup, or choose another folder with --state"},
	{"global/pg_control", "the cluster is damaged: restore a backup, or choose another folder with --state"},
	{"incorrect checksum in control file", "the cluster is damaged: restore a backup, or choose another folder with --state"},
}

// serverLog is the file that initdb and the server write to.
type serverLog struct {
	file *os.File
	from int64 // where this start begins
}

const (
	logKept  = 16 << 20 // bytes after which a start begins a new file
	tailSize = 2000     // bytes of the log that an error carries at most
	tailRows = 12
)

func openLog(path string) (*serverLog, error) {
	if fi, err := os.Stat(path); err == nil && fi.Size() > logKept {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("rotate the log of PostgreSQL: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of PostgreSQL: %w", err)
	}
	l := &serverLog{file: f}
	l.mark()
	return l, nil
}

// mark makes tail begin here.
func (l *serverLog) mark() {
	if end, err := l.file.Seek(0, io.SeekEnd); err == nil {
		l.from = end
	}
}

// tail is the last of what was written since mark.
func (l *serverLog) tail() string {
	fi, err := l.file.Stat()
	if err != nil {
		return ""
	}
	from := max(l.from, fi.Size()-tailSize)
	text := make([]byte, max(0, fi.Size()-from))
	n, _ := l.file.ReadAt(text, from)
	rows := strings.Split(strings.TrimSpace(string(text[:n])), "\n")
	return strings.Join(rows[max(0, len(rows)-tailRows):], "\n")
}

// explain is err with what the programs said and, where it is known, what to do.
func (l *serverLog) explain(what string, err error) error {
	said := l.tail()
	advice := "see the log"
	for _, r := range remedies {
		if strings.Contains(said, r.said) {
			advice = r.advice
			break
		}
	}
	return fmt.Errorf("%s: %w: %s; no data were deleted. Last lines of %s:\n%s", what, err, advice, l.file.Name(), said)
}
