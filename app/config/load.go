package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"
)

// Setting is a value that the environment, and if Flag is not empty a flag,
// can set. Key is its name in the file.
type Setting struct {
	Key, Env, Flag, Usage string
	set                   func(c *Config, text string) error
}

// Settings lists them all, in the order in which a person would want them.
var Settings = []Setting{
	{"state", "KM0_STATE", "state", "folder of the private PostgreSQL and the gateway's ledger", text(func(c *Config) *string { return &c.State })},
	{"http.addr", "KM0_HTTP_ADDR", "http", "address of the public API", text(func(c *Config) *string { return &c.HTTP.Addr })},
	{"ops.addr", "KM0_OPS_ADDR", "ops", "address of metrics and health", text(func(c *Config) *string { return &c.Ops.Addr })},
	{"modules", "KM0_MODULES", "modules", "modules hosted here, separated by commas", setModules},
	{"log.level", "KM0_LOG_LEVEL", "log-level", "debug, info, warn or error", text(func(c *Config) *string { return &c.Log.Level })},
	{"log.format", "KM0_LOG_FORMAT", "log-format", "json or text", text(func(c *Config) *string { return &c.Log.Format })},
	{"ops.token", "KM0_OPS_TOKEN", "", "bearer token of the operations port", text(func(c *Config) *string { return &c.Ops.Token })},
	{"databases.pedidos", "KM0_DSN_PEDIDOS", "", "DSN of the database of pedidos", text(func(c *Config) *string { return &c.Databases.Pedidos })},
	{"databases.inventario", "KM0_DSN_INVENTARIO", "", "DSN of the database of inventario", text(func(c *Config) *string { return &c.Databases.Inventario })},
	{"databases.pagos", "KM0_DSN_PAGOS", "", "DSN of the database of pagos", text(func(c *Config) *string { return &c.Databases.Pagos })},
	{"databases.bus", "KM0_DSN_BUS", "", "DSN of the database of the postgres bus", text(func(c *Config) *string { return &c.Databases.Bus })},
	{"databases.max_conns", "KM0_DATABASES_MAX_CONNS", "", "connections of each pool", number(func(c *Config) *int { return &c.Databases.MaxConns })},
	{"postgres.bin", "KM0_POSTGRES_BIN", "", "folder with the programs of PostgreSQL", text(func(c *Config) *string { return &c.Postgres.Bin })},
	{"gateway.url", "KM0_GATEWAY_URL", "", "payment gateway; empty runs a simulator", text(func(c *Config) *string { return &c.Gateway.URL })},
	{"gateway.timeout", "KM0_GATEWAY_TIMEOUT", "", "of one call", duration(func(c *Config) *time.Duration { return &c.Gateway.Timeout })},
	{"http.timeout", "KM0_HTTP_TIMEOUT", "", "of one request", duration(func(c *Config) *time.Duration { return &c.HTTP.Timeout })},
	{"stop_timeout", "KM0_STOP_TIMEOUT", "", "longest graceful stop", duration(func(c *Config) *time.Duration { return &c.StopTimeout })},
	{"bus.duplicates", "KM0_BUS_DUPLICATES", "", "fraction of messages published twice", fraction(func(c *Config) *float64 { return &c.Bus.Duplicates })},
	{"faults", "KM0_FAULTS", "", "crash points, for tests", text(func(c *Config) *string { return &c.Faults })},
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
// os.Environ gives it; an empty variable is as good as none) and flags (by
// name), and checks the result. The error lists everything that is wrong, a
// line each.
func Load(path string, environ []string, flags map[string]string) (Config, error) {
	c := Default()
	c.origins = origins{path: path, given: map[string]string{}}
	wrong := c.readFile(path)
	wrong = append(wrong, c.readEnviron(environ)...)
	for _, s := range Settings {
		if value, given := flags[s.Flag]; given && s.Flag != "" {
			wrong = append(wrong, c.give(s, "--"+s.Flag, value)...)
		}
	}
	if len(wrong) == 0 {
		wrong = c.origins.locate(c.check())
	}
	if len(wrong) > 0 {
		return Config{}, &Error{wrong}
	}
	return c, nil
}

// CheckConsumers refuses settings of consumers that are none of known. It is
// apart from Load because only the modules know their consumers.
func (c Config) CheckConsumers(known []string) error {
	var wrong []mistake
	for name := range c.Consumers {
		if name != "default" && !slices.Contains(known, name) {
			wrong = append(wrong, mistake{"consumers." + name, fmt.Sprintf("there is no such consumer; did you mean %s?", nearest(name, known))})
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return &Error{c.origins.locate(wrong)}
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
		return []error{fmt.Errorf("file: %w", err)}
	}
	file, err := parser.ParseBytes(content, 0)
	if err != nil {
		return []error{inFile(path, err)}
	}
	if len(file.Docs) > 1 {
		return []error{fmt.Errorf("%s: one document is read, this file has %d: remove the lines ---", path, len(file.Docs))}
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return nil // empty, or nothing but comments
	}
	c.origins.root = file.Docs[0].Body
	if err := yaml.UnmarshalWithOptions(content, c, yaml.Strict()); err != nil {
		return []error{inFile(path, err)}
	}
	return nil
}

// inFile says in one line what goccy/go-yaml says with a picture.
func inFile(path string, err error) error {
	var at yaml.Error
	if !errors.As(err, &at) || at.GetToken() == nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	t, hint := at.GetToken(), ""
	var unknown *yaml.UnknownFieldError
	if errors.As(err, &unknown) {
		hint = fmt.Sprintf("; did you mean %s?", nearest(t.Value, fileKeys(reflect.TypeFor[Config]())))
	}
	return fmt.Errorf("%s:%d:%d: %s%s", path, t.Position.Line, t.Position.Column, at.GetMessage(), hint)
}

// fileKeys are the names of all keys of t.
func fileKeys(t reflect.Type) (keys []string) {
	if t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	for _, field := range reflect.VisibleFields(t) {
		if key := field.Tag.Get("yaml"); key != "" {
			keys = append(append(keys, key), fileKeys(field.Type)...)
		}
	}
	return keys
}

func (c *Config) readEnviron(environ []string) (wrong []error) {
	known, names := map[string]Setting{}, []string{}
	for _, s := range Settings {
		known[s.Env], names = s, append(names, s.Env)
	}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, "KM0_") || strings.HasPrefix(name, "KM0_TEST_") || name == "KM0_CONFIG" || name == "KM0_POSTGRES_MIRROR" {
			continue
		}
		s, ok := known[name]
		switch {
		case !ok:
			wrong = append(wrong, fmt.Errorf("environment variable %s is unknown; did you mean %s?", name, nearest(name, names)))
		case value != "":
			wrong = append(wrong, c.give(s, name, value)...)
		}
	}
	return wrong
}

// give sets a value that a variable or a flag, by, has.
func (c *Config) give(s Setting, by, value string) []error {
	if err := s.set(c, value); err != nil {
		return []error{fmt.Errorf("%s: %w", by, err)}
	}
	c.origins.given[s.Key] = by
	return nil
}
