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
func (c *Config) check() (wrong []mistake) {
	bad := func(key, format string, args ...any) {
		wrong = append(wrong, mistake{key, fmt.Sprintf(format, args...)})
	}
	if c.State == "" {
		bad("state", "a folder is needed")
	} else if abs, err := filepath.Abs(c.State); err == nil {
		c.State = abs
	}
	if len(c.Modules) == 0 {
		bad("modules", "at least one of %s is needed", strings.Join(modules, ", "))
	}
	for i, m := range c.Modules {
		switch {
		case !slices.Contains(modules, m):
			bad("modules", "%q is none of %s", m, strings.Join(modules, ", "))
		case slices.Contains(c.Modules[:i], m):
			bad("modules", "%s is named twice", m)
		}
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level) {
		bad("log.level", "%q is none of debug, info, warn, error", c.Log.Level)
	}
	if !slices.Contains([]string{"json", "text"}, c.Log.Format) {
		bad("log.format", "%q is none of json, text", c.Log.Format)
	}
	for key, addr := range map[string]string{"http.addr": c.HTTP.Addr, "ops.addr": c.Ops.Addr} {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			bad(key, "%q is no host:port", addr)
		}
	}
	if !loopback(c.Ops.Addr) && c.Ops.Token == "" {
		bad("ops.addr", "%s is reachable from other machines: set ops.token (KM0_OPS_TOKEN), or use 127.0.0.1", c.Ops.Addr)
	}
	if c.Bus.Driver != "postgres" {
		bad("bus.driver", "%q is not available, only postgres", c.Bus.Driver)
	}
	if d := c.Bus.Duplicates; !(d >= 0 && d <= 1) { // so that NaN is refused, too
		bad("bus.duplicates", "%g is not from 0 to 1", c.Bus.Duplicates)
	}
	if c.Bus.MaxMessage < 1<<10 || c.Bus.MaxMessage > 64<<20 {
		bad("bus.max_message", "%d is not from %d to %d bytes", c.Bus.MaxMessage, 1<<10, 64<<20)
	}
	wrong = append(wrong, c.checkDatabases()...)
	for key, d := range map[string]time.Duration{
		"stop_timeout": c.StopTimeout, "http.timeout": c.HTTP.Timeout, "gateway.timeout": c.Gateway.Timeout,
		"retention.outbox": c.Retention.Outbox, "retention.inbox": c.Retention.Inbox,
		"retention.bus": c.Retention.Bus, "retention.every": c.Retention.Every,
	} {
		if d <= 0 {
			bad(key, "%s is not above zero", d)
		}
	}
	if c.Retention.Inbox < c.Retention.Bus {
		bad("retention.inbox", "%s is below retention.bus (%s): a message could come back after it was forgotten", c.Retention.Inbox, c.Retention.Bus)
	}
	if u, err := url.Parse(c.Gateway.URL); c.Gateway.URL != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		bad("gateway.url", "%q is no http://host:port or https://host", c.Gateway.URL)
	}
	for name := range c.Consumers {
		if err := c.Consumer(name).Over(consumer.Defaults()).Validate(); err != nil {
			bad("consumers."+name, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	if err := faults.Check(c.Faults); err != nil {
		bad("faults", "%s", err)
	}
	return wrong
}

const (
	minConns = 4 // a handler and a request hold one each, a purge and a page of metrics the others
	maxConns = 250
)

func (c *Config) checkDatabases() (wrong []mistake) {
	needed := append([]string{"bus"}, c.Modules...)
	var missing []string
	for _, name := range needed {
		if c.Databases.DSN(name) == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 && len(missing) < len(needed) {
		wrong = append(wrong, mistake{"databases", fmt.Sprintf(
			"no DSN for %s: set all that this process needs (%s), or none to run a private PostgreSQL",
			strings.Join(missing, ", "), strings.Join(needed, ", "))})
	}
	if n := c.Databases.MaxConns; n < minConns || n > maxConns {
		wrong = append(wrong, mistake{"databases.max_conns", fmt.Sprintf("%d: each pool needs at least %d and at most %d", n, minConns, maxConns)})
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
