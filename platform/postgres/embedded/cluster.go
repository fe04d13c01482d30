package embedded

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const role = "km0" // owner of the cluster and the user of every DSN

// tagOf names a cluster in the titles of its processes.
func tagOf(data string) string {
	sum := sha256.Sum256([]byte(data))
	return "km0-" + hex.EncodeToString(sum[:6])
}

// majorOf reads which major version made the cluster; 0 when there is none yet.
func majorOf(data string) (int, error) {
	path := filepath.Join(data, "PG_VERSION")
	text, err := os.ReadFile(path)
	switch {
	case err == nil:
		major, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return 0, fmt.Errorf("%s says %q, which is no version: the cluster is damaged: restore a backup, or choose another folder with --state", path, text)
		}
		return major, nil
	case errors.Is(err, syscall.ENOTDIR):
		return 0, fmt.Errorf("%s is a file, where the cluster should be: move it away, or choose another folder with --state", data)
	case !errors.Is(err, fs.ErrNotExist):
		return 0, fmt.Errorf("read the cluster's version: %w", err)
	}
	entries, err := os.ReadDir(data)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read the cluster's folder: %w", err)
	case len(entries) > 0:
		return 0, fmt.Errorf("%s holds files but no PG_VERSION, so it is no whole cluster: move it away or restore a backup; nothing was touched", data)
	}
	return 0, nil
}

// createCluster makes the cluster beside its place and renames it when it is
// complete. The caller holds the lock of the cluster, which initdb inherits.
func createCluster(ctx context.Context, cfg Config, i install, data string, who account, lock *os.File, log *serverLog) error {
	half := data + ".init"
	var err error
	for _, locale := range locales(i.major) {
		if err = os.RemoveAll(half); err != nil {
			return fmt.Errorf("remove a half-made cluster: %w", err)
		}
		if err = who.own(half); err != nil {
			return err
		}
		log.mark()
		if err = initdb(ctx, cfg, i, half, who, locale, lock, log); err == nil {
			break
		}
		if ctx.Err() != nil || !strings.Contains(log.tail(), "locale") {
			break
		}
	}
	if err != nil {
		failed := log.explain("make the cluster with "+i.program("initdb"), err)
		_ = os.RemoveAll(half) // nothing in it yet; the next start would remove it too
		return failed
	}
	if err := os.Rename(half, data); err != nil {
		return fmt.Errorf("put the new cluster in place: %w", err)
	}
	return syncDir(filepath.Dir(data))
}

// locales are UTF-8 by code point, which is fast and the same on every system:
// built in since 17; before, where the C library has it; else plain C.
func locales(major int) [][]string {
	if major >= 17 {
		return [][]string{{"--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"}}
	}
	return [][]string{{"--locale=C.UTF-8"}, {"--locale=C"}}
}

func initdb(ctx context.Context, cfg Config, i install, data string, who account, locale []string, lock *os.File, log *serverLog) error {
	args := append([]string{
		"--pgdata=" + data, "--username=" + role, "--encoding=UTF8", "--data-checksums",
		"--auth-local=trust", "--auth-host=reject", "--no-instructions",
	}, locale...)
	if cfg.Fast {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, i.program("initdb"), args...)
	cmd.Stdout, cmd.Stderr = log.file, log.file
	cmd.ExtraFiles = []*os.File{lock}
	if err := who.run(cmd); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	return nil
}
