package config

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

// Setting is a value that the environment, and if Flag is not empty a flag,
// can set.
type Setting struct {
	Env, Flag, Usage string
	set              func(c *Config, text string) error
}

// Settings lists them all, in the order in which a person would want them.
var Settings = []Setting{
	{"KM0_STATE", "state", "folder of the private PostgreSQL and the gateway's ledger", text(func(c *Config) *string { return &c.State })},
	{"KM0_HTTP_ADDR", "http", "address of the public API", text(func(c *Config) *string { return &c.HTTP.Addr })},
	{"KM0_OPS_ADDR", "ops", "address of metrics and health", text(func(c *Config) *string { return &c.Ops.Addr })},
	{"KM0_MODULES", "modules", "modules hosted here, separated by commas", setModules},
	{"KM0_LOG_LEVEL", "log-level", "debug, info, warn or error", text(func(c *Config) *string { return &c.Log.Level })},
	{"KM0_LOG_FORMAT", "log-format", "json or text", text(func(c *Config) *string { return &c.Log.Format })},
	{"KM0_OPS_TOKEN", "", "bearer token of the operations port", text(func(c *Config) *string { return &c.Ops.Token })},
	{"KM0_DSN_PEDIDOS", "", "DSN of the database of pedidos", text(func(c *Config) *string { return &c.Databases.Pedidos })},
	{"KM0_DSN_INVENTARIO", "", "DSN of the database of inventario", text(func(c *Config) *string { return &c.Databases.Inventario })},
	{"KM0_DSN_PAGOS", "", "DSN of the database of pagos", text(func(c *Config) *string { return &c.Databases.Pagos })},
	{"KM0_DSN_BUS", "", "DSN of the database of the postgres bus", text(func(c *Config) *string { return &c.Databases.Bus })},
	{"KM0_DATABASES_MAX_CONNS", "", "connections of each pool", number(func(c *Config) *int { return &c.Databases.MaxConns })},
	{"KM0_POSTGRES_BIN", "", "folder with the programs of PostgreSQL", text(func(c *Config) *string { return &c.Postgres.Bin })},
	{"KM0_GATEWAY_URL", "", "payment gateway; empty runs a simulator", text(func(c *Config) *string { return &c.Gateway.URL })},
	{"KM0_GATEWAY_TIMEOUT", "", "of one call", duration(func(c *Config) *time.Duration { return &c.Gateway.Timeout })},
	{"KM0_HTTP_TIMEOUT", "", "of one request", duration(func(c *Config) *time.Duration { return &c.HTTP.Timeout })},
	{"KM0_STOP_TIMEOUT", "", "longest graceful stop", duration(func(c *Config) *time.Duration { return &c.StopTimeout })},
	{"KM0_BUS_DUPLICATES", "", "fraction of messages published twice", fraction(func(c *Config) *float64 { return &c.Bus.Duplicates })},
	{"KM0_FAULTS", "", "crash points, for tests", text(func(c *Config) *string { return &c.Faults })},
}

func text(field func(*Config) *string) func(*Config, string) error {
	return func(c *Config, s string) error { *field(c) = s; return nil }
}

func number(field func(*Config) *int) func(*Config, string) error {
	return func(c *Config, s string) (err error) {
		if *field(c), err = strconv.Atoi(s); err != nil {
			return fmt.Errorf("%q is no whole number", s)
		}
		return nil
	}
}

func fraction(field func(*Config) *float64) func(*Config, string) error {
	return func(c *Config, s string) (err error) {
		if *field(c), err = strconv.ParseFloat(s, 64); err != nil {
			return fmt.Errorf("%q is no number", s)
		}
		return nil
	}
}

func duration(field func(*Config) *time.Duration) func(*Config, string) error {
	return func(c *Config, s string) (err error) {
		if *field(c), err = time.ParseDuration(s); err != nil {
			return fmt.Errorf("%q is no duration such as 500ms, 10s or 2h", s)
		}
		return nil
	}
}

func setModules(c *Config, s string) error {
	c.Modules = nil
	for _, m := range strings.Split(s, ",") {
		if m = strings.TrimSpace(m); m != "" {
			c.Modules = append(c.Modules, m)
		}
	}
	return nil
}

// Load reads the file (none if path is empty), the environment (as
// os.Environ gives it) and flags (by name), and checks the result. The error
// lists everything that is wrong, a line each.
func Load(path string, environ []string, flags map[string]string) (Config, error) {
	c := Default()
	wrong := c.readFile(path)
	wrong = append(wrong, c.readEnviron(environ)...)
	for _, s := range Settings {
		if value, given := flags[s.Flag]; given && s.Flag != "" {
			if err := s.set(&c, value); err != nil {
				wrong = append(wrong, fmt.Errorf("--%s: %w", s.Flag, err))
			}
		}
	}
	if len(wrong) == 0 {
		wrong = c.check()
	}
	if len(wrong) > 0 {
		return Config{}, &Error{wrong}
	}
	return c, nil
}

// Error is every mistake of a configuration.
type Error struct{ Mistakes []error }

func (e *Error) Error() string {
	if len(e.Mistakes) == 1 {
		return "configuration: " + e.Mistakes[0].Error()
	}
	lines := make([]string, len(e.Mistakes))
	for i, err := range e.Mistakes {
		lines[i] = "  " + err.Error()
	}
	return fmt.Sprintf("configuration: %d mistakes\n%s", len(e.Mistakes), strings.Join(lines, "\n"))
}

func (c *Config) readFile(path string) []error {
	if path == "" {
		return nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return []error{fmt.Errorf("file %s: %w", path, err)}
	}
	if len(strings.TrimSpace(string(content))) == 0 {
		return nil
	}
	if err := yaml.UnmarshalWithOptions(content, c, yaml.Strict()); err != nil {
		var at yaml.Error
		if errors.As(err, &at) && at.GetToken() != nil {
			p := at.GetToken().Position
			return []error{fmt.Errorf("%s:%d:%d: %s", path, p.Line, p.Column, at.GetMessage())}
		}
		return []error{fmt.Errorf("%s: %w", path, err)}
	}
	return nil
}

func (c *Config) readEnviron(environ []string) (wrong []error) {
	known := map[string]Setting{}
	for _, s := range Settings {
		known[s.Env] = s
	}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, "KM0_") || strings.HasPrefix(name, "KM0_TEST_") || name == "KM0_CONFIG" || name == "KM0_POSTGRES_MIRROR" {
			continue
		}
		s, ok := known[name]
		if !ok {
			wrong = append(wrong, fmt.Errorf("environment variable %s is unknown; did you mean %s?", name, nearest(name)))
			continue
		}
		if value == "" {
			continue
		}
		if err := s.set(c, value); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", name, err))
		}
	}
	return wrong
}
