package embedded

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
)

// Config describes one private cluster.
type Config struct {
	// Dir is the state folder; the cluster lives in Dir/postgres. It is created
	// if missing. Required.
	Dir string

	// BinDir is a folder with postgres and initdb. When set, nothing else is
	// searched or fetched. (KM0_POSTGRES_BIN is read by the caller, not here.)
	BinDir string

	// CacheDir is where fetched programs are kept. Default: km0 in the user's
	// cache folder; for root a folder below Dir. A folder that cannot be written,
	// or that the server's account cannot enter, is replaced by one below Dir.
	CacheDir string

	// Logger receives what is worth knowing about the start. Default: discard.
	Logger *slog.Logger

	// Progress is where the bar of a download is drawn. Default: no bar.
	Progress io.Writer

	// Fast gives up safety for speed: no fsync, ever. For clusters that are
	// thrown away.
	Fast bool

	// Params are extra server settings, above the ones of this package. Those
	// that a promise of this package rests on (the socket, fsync) are refused.
	Params map[string]string

	// from says where the server programs come from; tests replace it.
	from *sources
}

// reserved settings carry a promise of the package.
var reserved = []string{
	"cluster_name", "config_file", "data_directory", "full_page_writes", "fsync", "hba_file", "listen_addresses",
	"port", "unix_socket_directories", "unix_socket_group", "unix_socket_permissions",
}

// checked fills in the defaults.
func (c Config) checked() (Config, error) {
	if c.Dir == "" {
		return c, errors.New("private PostgreSQL: no state folder given")
	}
	for _, path := range []*string{&c.Dir, &c.BinDir, &c.CacheDir} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return c, fmt.Errorf("absolute path of %s: %w", *path, err)
		}
		*path = abs
	}
	for name := range c.Params {
		if slices.Contains(reserved, name) {
			return c, fmt.Errorf("setting %q of the private PostgreSQL is fixed: remove it, or run a server of your own and set its DSN", name)
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.from == nil {
		c.from = defaultSources()
	}
	return c, nil
}

// arguments are the settings as the server's command line takes them.
func (c Config) arguments(socketDir, tag string) []string {
	settings := map[string]string{
		"cluster_name":            tag,
		"listen_addresses":        "",
		"unix_socket_directories": socketDir,
		"unix_socket_permissions": "0700",
		"port":                    socketPort,

		"shared_buffers":    "256MB",
		"max_connections":   "200",
		"max_wal_size":      "2GB",
		"wal_level":         "replica",
		"jit":               "off",
		"logging_collector": "off", // stderr is the log file
		"log_line_prefix":   "%m [%p] %d ",
		"fsync":             "on",
		"full_page_writes":  "on",
	}
	if c.Fast {
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
		settings["synchronous_commit"] = "off"
	}
	maps.Copy(settings, c.Params)

	var args []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}
