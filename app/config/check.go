package config

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"km0/platform/consumer"
	"km0/platform/faults"
)

var modules = []string{"pedidos", "inventario", "pagos"}

// check says everything that is wrong with c.
func (c *Config) check() (wrong []error) {
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if c.State == "" {
		bad("state: a folder is needed")
	} else if abs, err := filepath.Abs(c.State); err == nil {
		c.State = abs
	}
	if len(c.Modules) == 0 {
		bad("modules: at least one of %s is needed", strings.Join(modules, ", "))
	}
	for i, m := range c.Modules {
		switch {
		case !slices.Contains(modules, m):
			bad("modules: %q is none of %s", m, strings.Join(modules, ", "))
		case slices.Contains(c.Modules[:i], m):
			bad("modules: %s is named twice", m)
		}
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level) {
		bad("log.level: %q is none of debug, info, warn, error", c.Log.Level)
	}
	if !slices.Contains([]string{"json", "text"}, c.Log.Format) {
		bad("log.format: %q is none of json, text", c.Log.Format)
	}
	for key, addr := range map[string]string{"http.addr": c.HTTP.Addr, "ops.addr": c.Ops.Addr} {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			bad("%s: %q is no host:port", key, addr)
		}
	}
	if !loopback(c.Ops.Addr) && c.Ops.Token == "" {
		bad("ops.addr: %s is reachable from other machines: set ops.token (KM0_OPS_TOKEN), or use 127.0.0.1", c.Ops.Addr)
	}
	if c.Bus.Driver != "postgres" {
		bad("bus.driver: %q is not available, only postgres", c.Bus.Driver)
	}
	if c.Bus.Duplicates < 0 || c.Bus.Duplicates > 1 {
		bad("bus.duplicates: %g is not from 0 to 1", c.Bus.Duplicates)
	}
	wrong = append(wrong, c.checkDatabases()...)
	for key, d := range map[string]time.Duration{
		"stop_timeout": c.StopTimeout, "http.timeout": c.HTTP.Timeout, "gateway.timeout": c.Gateway.Timeout,
		"retention.outbox": c.Retention.Outbox, "retention.inbox": c.Retention.Inbox,
		"retention.bus": c.Retention.Bus, "retention.every": c.Retention.Every,
	} {
		if d <= 0 {
			bad("%s: %s is not above zero", key, d)
		}
	}
	if c.Retention.Inbox < c.Retention.Bus {
		bad("retention.inbox: %s is below retention.bus (%s): a message could come back after it was forgotten", c.Retention.Inbox, c.Retention.Bus)
	}
	if u, err := url.Parse(c.Gateway.URL); c.Gateway.URL != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		bad("gateway.url: %q is no http://host:port or https://host", c.Gateway.URL)
	}
	for name := range c.Consumers {
		if err := c.Consumer(name).Over(consumer.Defaults()).Validate(); err != nil {
			bad("consumers.%s: %w", name, err)
		}
	}
	if err := faults.Check(c.Faults); err != nil {
		bad("faults: %w", err)
	}
	slices.SortFunc(wrong, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return wrong
}

func (c *Config) checkDatabases() (wrong []error) {
	needed := append([]string{"bus"}, c.Modules...)
	var missing []string
	for _, name := range needed {
		if c.Databases.DSN(name) == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 && len(missing) < len(needed) {
		wrong = append(wrong, fmt.Errorf(
			"databases: no DSN for %s: set all that this process needs (%s), or none to run a private PostgreSQL",
			strings.Join(missing, ", "), strings.Join(needed, ", ")))
	}
	if c.Databases.MaxConns < 4 {
		wrong = append(wrong, fmt.Errorf("databases.max_conns: %d is too few: each pool needs at least 4", c.Databases.MaxConns))
	}
	return wrong
}

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return true // reported already
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// nearest is the known variable with the fewest edits from name.
func nearest(name string) string {
	best, distance := "", 1<<30
	for _, s := range Settings {
		if d := edits(name, s.Env); d < distance {
			best, distance = s.Env, d
		}
	}
	return best
}

// edits is the Levenshtein distance.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
