package config_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

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
		"unknown key":          {file: "http:\n  adress: x\n", want: "km0.yaml:2:3"},
		"wrong type":           {file: "databases:\n  max_conns: many\n", want: "km0.yaml:2:14"},
		"duration of no unit":  {file: "stop_timeout: 30\n", want: "km0.yaml:1:15"},
		"misspelt variable":    {environ: []string{"KM0_HTP_ADDR=x"}, want: "did you mean KM0_HTTP_ADDR"},
		"number with text":     {environ: []string{"KM0_DATABASES_MAX_CONNS=5x"}, want: "KM0_DATABASES_MAX_CONNS"},
		"bad duration":         {environ: []string{"KM0_STOP_TIMEOUT=soon"}, want: "500ms, 10s or 2h"},
		"unknown fault":        {environ: []string{"KM0_FAULTS=relay.nowhere=kill@1"}, want: "relay.confirmed"},
		"flag":                 {flags: map[string]string{"http": "8080"}, want: "no host:port"},
		"forgets too early":    {file: "retention: {inbox: 24h}\n", want: "retention.inbox"},
		"another bus":          {file: "bus: {driver: pigeon}\n", want: `"pigeon"`},
		"too few connections":  {file: "databases: {max_conns: 1}\n", want: "at least 4"},
		"module twice":         {file: "modules: [pagos, pagos]\n", want: "named twice"},
		"impossible duplicate": {file: "bus: {duplicates: 2}\n", want: "bus.duplicates"},
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
	_, err = config.Load(file(t, "\n"), nil, nil)
	require.NoError(t, err)
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
