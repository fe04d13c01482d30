// Package config is the whole configuration of km0: its types, their defaults,
// where values come from and what is wrong with them.
//
// A value given by a flag wins over the environment, the environment over the
// file, the file over the default. Everything is checked before anything
// starts, and all mistakes are reported at once.
package config

import (
	"os"
	"path/filepath"
	"time"

	"km0/platform/consumer"
)

// Config is one process.
type Config struct {
	State       string        `yaml:"state"`        // folder of the private PostgreSQL and the gateway's ledger
	Modules     []string      `yaml:"modules"`      // which of pedidos, inventario, pagos live here
	StopTimeout time.Duration `yaml:"stop_timeout"` // longest graceful stop
	Faults      string        `yaml:"faults"`       // crash points, see platform/faults; for tests only

	Log       Log                          `yaml:"log"`
	HTTP      HTTP                         `yaml:"http"`
	Ops       Ops                          `yaml:"ops"`
	Bus       Bus                          `yaml:"bus"`
	Databases Databases                    `yaml:"databases"`
	Postgres  Postgres                     `yaml:"postgres"`
	Gateway   Gateway                      `yaml:"gateway"`
	Retention Retention                    `yaml:"retention"`
	Consumers map[string]consumer.Settings `yaml:"consumers"` // by name; "default" for all

	origins origins
}

// Log goes to standard error.
type Log struct {
	Level  string `yaml:"level"`  // debug, info, warn, error
	Format string `yaml:"format"` // json, text
}

// HTTP is the public API.
type HTTP struct {
	Addr    string        `yaml:"addr"`    // host:port
	Timeout time.Duration `yaml:"timeout"` // of one request; afterwards 503
}

// Ops is the operations port: metrics and health.
type Ops struct {
	Addr  string `yaml:"addr"`  // host:port
	Token string `yaml:"token"` // bearer token; needed unless the address is loopback
}

// Bus carries the events.
type Bus struct {
	Driver     string  `yaml:"driver"`      // postgres
	Duplicates float64 `yaml:"duplicates"`  // fraction of messages published twice; for demonstrations and tests
	MaxMessage int     `yaml:"max_message"` // bytes, from 1 KiB to 64 MiB
}

// Databases are DSNs. With none set, km0 runs its own PostgreSQL; with those
// that this process needs set, it starts none.
type Databases struct {
	Pedidos    string `yaml:"pedidos"`
	Inventario string `yaml:"inventario"`
	Pagos      string `yaml:"pagos"`
	Bus        string `yaml:"bus"`
	MaxConns   int    `yaml:"max_conns"` // of each pool, from 4 to 250
}

// Postgres is the private server.
type Postgres struct {
	Bin string `yaml:"bin"` // folder of its programs; found or fetched if empty
}

// Gateway is the payment gateway. Without a URL a simulator runs in the
// process.
type Gateway struct {
	URL     string        `yaml:"url"`
	Timeout time.Duration `yaml:"timeout"` // of one call
}

// Retention is how long done work is kept.
type Retention struct {
	Outbox time.Duration `yaml:"outbox"` // published events
	Inbox  time.Duration `yaml:"inbox"`  // ids of processed messages; not below bus
	Bus    time.Duration `yaml:"bus"`    // acknowledged messages of the postgres bus
	Every  time.Duration `yaml:"every"`  // how often purges run
}

const day = 24 * time.Hour

// Default is the configuration of a process that is told nothing.
func Default() Config {
	return Config{
		State:       defaultState(),
		Modules:     []string{"pedidos", "inventario", "pagos"},
		StopTimeout: 30 * time.Second,
		Log:         Log{Level: "info", Format: "json"},
		HTTP:        HTTP{Addr: "127.0.0.1:8080", Timeout: 5 * time.Second},
		Ops:         Ops{Addr: "127.0.0.1:8081"},
		Bus:         Bus{Driver: "postgres", MaxMessage: 1 << 20},
		Databases:   Databases{MaxConns: 32},
		Gateway:     Gateway{Timeout: 3 * time.Second},
		Retention:   Retention{Outbox: 14 * day, Inbox: 14 * day, Bus: 7 * day, Every: time.Hour},
		Consumers:   map[string]consumer.Settings{},
	}
}

// defaultState is where a database user that is not root can reach it.
func defaultState() string {
	if os.Geteuid() == 0 {
		return "/var/lib/km0"
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "km0")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state", "km0")
	}
	return filepath.Join(os.TempDir(), "km0-state")
}

// Hosts says whether module lives in this process.
func (c Config) Hosts(module string) bool {
	for _, m := range c.Modules {
		if m == module {
			return true
		}
	}
	return false
}

// DSN is that of a module's database, or of the bus.
func (d Databases) DSN(name string) string {
	return map[string]string{"pedidos": d.Pedidos, "inventario": d.Inventario, "pagos": d.Pagos, "bus": d.Bus}[name]
}

// Embedded says whether the process runs its own PostgreSQL.
func (c Config) Embedded() bool {
	for _, name := range append([]string{"bus"}, c.Modules...) {
		if c.Databases.DSN(name) != "" {
			return false
		}
	}
	return true
}

// Consumer is what the configuration says of a consumer: what is not set stays
// zero, for the module's defaults to fill in.
func (c Config) Consumer(name string) consumer.Settings {
	return c.Consumers[name].Over(c.Consumers["default"])
}
