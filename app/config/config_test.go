package config_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"km0/app/config"
)

func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "km0.yaml")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestAFlagWinsOverTheEnvironmentThatOverTheFileThatOverTheDefault(t *testing.T) {
	t.Parallel()
	path := file(t, "http: {addr: '127.0.0.1:1'}\nops: {addr: '127.0.0.1:2'}\nlog: {level: debug}\nstop_timeout: 7s\n")
	c, err := config.Load(path, []string{"KM0_HTTP_ADDR=127.0.0.1:3", "KM0_OPS_ADDR=127.0.0.1:4"}, map[string]string{"http": "127.0.0.1:5"})
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:5", c.HTTP.Addr)
	require.Equal(t, "127.0.0.1:4", c.Ops.Addr)
	require.Equal(t, "debug", c.Log.Level)
	require.Equal(t, 7*time.Second, c.StopTimeout)
	require.Equal(t, 5*time.Second, c.HTTP.Timeout)
}

func TestConsumersInheritFromDefaultAndThenFromTheirModule(t *testing.T) {
	t.Parallel()
	path := file(t, "consumers:\n  default: {timeout: 3s, retry: {attempts: 9}}\n  pagos.cobro: {concurrency: 2}\n")
	c, err := config.Load(path, nil, nil)
	require.NoError(t, err)
	s := c.Consumer("pagos.cobro")
	require.Equal(t, 2, s.Concurrency)
	require.Equal(t, 3*time.Second, s.Timeout)
	require.Equal(t, 9, s.Retry.Attempts)
	require.Zero(t, s.Retry.Initial, "what nobody set is the module's to say")
}

func TestMistakesAreNamedAllAtOnce(t *testing.T) {
	t.Parallel()
	_, err := config.Load("", []string{"KM0_MODULES=pedidos,reparto", "KM0_LOG_LEVEL=loud", "KM0_OPS_ADDR=0.0.0.0:8081", "KM0_DSN_BUS=postgres://x"}, nil)
	var mistakes *config.Error
	require.ErrorAs(t, err, &mistakes)
	require.Len(t, mistakes.Mistakes, 4)
	for _, part := range []string{`"reparto"`, `"loud"`, "ops.token", "no DSN for"} {
		require.ErrorContains(t, err, part)
	}
}

func TestEachMistakeSaysWhereAndWhat(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		file    string
		environ []string
		flags   map[string]string
		want    string
	}{
		"unknown key":      {file: "http:\n  adress: x\n", want: `km0.yaml:2:3: unknown field "adress"; did you mean addr?`},
		"wrongly indented": {file: "http:\naddr: '127.0.0.1:1'\n", want: "km0.yaml:2:1"},
		"no YAML":          {file: "http: {addr: \n", want: "km0.yaml:1:"},
		"two documents":    {file: "http: {}\n---\nops: {}\n", want: "this file has 2"},
		"key twice":        {file: "stop_timeout: 1s\nstop_timeout: 2s\n", want: "km0.yaml:2:1"},
		"bad value":        {file: "log:\n  format: json\n  level: loud\n", want: `km0.yaml:3:3: log.level: "loud"`},
		"bad value of a variable": {file: "log: {level: debug}\n", environ: []string{"KM0_LOG_LEVEL=loud"},
			want: `KM0_LOG_LEVEL: log.level: "loud"`},
		"bad value of a flag": {environ: []string{"KM0_HTTP_ADDR=127.0.0.1:1"}, flags: map[string]string{"http": "8080"},
			want: `--http: http.addr: "8080"`},
		"bad consumer": {file: "consumers:\n  default: {timeout: 1s}\n  pagos.cobro:\n    concurrency: -1\n",
			want: "km0.yaml:3:3: consumers.pagos.cobro: concurrency must be"},
		"consumer without unit": {file: "consumers:\n  pagos.cobro: {timeout: 5}\n", want: "km0.yaml:2:26"},
		"wrong type":            {file: "databases:\n  max_conns: many\n", want: "km0.yaml:2:14"},
		"duration of no unit":   {file: "stop_timeout: 30\n", want: "km0.yaml:1:15"},
		"misspelt variable":     {environ: []string{"KM0_HTP_ADDR=x"}, want: "did you mean KM0_HTTP_ADDR"},
		"number with text":      {environ: []string{"KM0_DATABASES_MAX_CONNS=5x"}, want: "KM0_DATABASES_MAX_CONNS"},
		"bad duration":          {environ: []string{"KM0_STOP_TIMEOUT=soon"}, want: "500ms, 10s or 2h"},
		"unknown fault":         {environ: []string{"KM0_FAULTS=relay.nowhere=kill@1"}, want: "relay.confirmed"},
		"forgets too early":     {file: "retention: {inbox: 24h}\n", want: "retention.inbox"},
		"another bus":           {file: "bus: {driver: pigeon}\n", want: `"pigeon"`},
		"too few connections":   {file: "databases: {max_conns: 1}\n", want: "at least 4"},
		"too many connections":  {environ: []string{"KM0_DATABASES_MAX_CONNS=4294967300"}, want: "at most 250"},
		"no message fits":       {file: "bus: {max_message: 0}\n", want: "bus.max_message"},
		"fraction of nothing":   {environ: []string{"KM0_BUS_DUPLICATES=NaN"}, want: "bus.duplicates"},
		"module twice":          {file: "modules: [pagos, pagos]\n", want: "named twice"},
		"impossible duplicate":  {file: "bus: {duplicates: 2}\n", want: "bus.duplicates"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := ""
			if c.file != "" {
				path = file(t, c.file)
			}
			_, err := config.Load(path, c.environ, c.flags)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestAMissingFileIsAnErrorAndAnEmptyOneIsNot(t *testing.T) {
	t.Parallel()
	_, err := config.Load(filepath.Join(t.TempDir(), "none.yaml"), nil, nil)
	require.ErrorContains(t, err, "none.yaml")
	for _, empty := range []string{"", "\n", "# nothing yet\n", "---\n", "consumers:\n"} {
		_, err = config.Load(file(t, empty), nil, nil)
		require.NoError(t, err, "%q", empty)
	}
}

func TestAConsumerThatDoesNotExistIsNamedWithItsPlaceAndTheNearest(t *testing.T) {
	t.Parallel()
	known := []string{"inventario.descuento_stock", "pagos.cobro"}
	c, err := config.Load(file(t, "consumers:\n  default: {timeout: 3s}\n  pagos.cobros: {timeout: 3s}\n"), nil, nil)
	require.NoError(t, err)
	require.ErrorContains(t, c.CheckConsumers(known), "km0.yaml:3:3: consumers.pagos.cobros: there is no such consumer; did you mean pagos.cobro?")
	require.NoError(t, c.CheckConsumers(append(known, "pagos.cobros")))
}

// TestEverySettingReachesItsOwnKey is case C48: a key with an underscore, too.
func TestEverySettingReachesItsOwnKey(t *testing.T) {
	t.Parallel()
	valid := map[string]string{
		"KM0_STATE": "/elsewhere", "KM0_HTTP_ADDR": "127.0.0.1:1", "KM0_OPS_ADDR": "127.0.0.1:2", "KM0_MODULES": "pagos",
		"KM0_LOG_LEVEL": "warn", "KM0_LOG_FORMAT": "text", "KM0_DATABASES_MAX_CONNS": "5", "KM0_GATEWAY_URL": "http://127.0.0.1:3",
		"KM0_GATEWAY_TIMEOUT": "4s", "KM0_HTTP_TIMEOUT": "6s", "KM0_STOP_TIMEOUT": "7s", "KM0_BUS_DUPLICATES": "0.5",
		"KM0_FAULTS": "relay.marked=kill@1",
	}
	for _, s := range config.Settings {
		value := valid[s.Env]
		if value == "" {
			value = "text of " + s.Env
		}
		environ := []string{s.Env + "=" + value}
		if name, is := strings.CutPrefix(s.Key, "databases."); is && name != "max_conns" { // all or none
			for _, name := range []string{"PEDIDOS", "INVENTARIO", "PAGOS", "BUS"} {
				environ = append([]string{"KM0_DSN_" + name + "=other"}, environ...)
			}
		}
		c, err := config.Load("", environ, nil)
		require.NoError(t, err, s.Env)
		document, err := yaml.Marshal(c)
		require.NoError(t, err)
		path, err := yaml.PathString("$." + s.Key)
		require.NoError(t, err, s.Key)
		var got any
		require.NoError(t, path.Read(bytes.NewReader(document), &got), s.Key)
		if list, ok := got.([]any); ok {
			got = list[0]
		}
		require.Equal(t, value, fmt.Sprint(got), s.Env)
	}
}

func TestOnlyAProcessWithoutDSNsRunsItsOwnPostgreSQL(t *testing.T) {
	t.Parallel()
	c, err := config.Load("", nil, nil)
	require.NoError(t, err)
	require.True(t, c.Embedded())
	c, err = config.Load("", []string{"KM0_MODULES=pagos", "KM0_DSN_PAGOS=postgres://a", "KM0_DSN_BUS=postgres://b"}, nil)
	require.NoError(t, err)
	require.False(t, c.Embedded())
}
