package app_test

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"km0/app"
	"km0/platform/testbed"
)

// asKm0 makes the test binary km0 itself.
const asKm0 = "KM0_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asKm0) != "" {
		os.Exit(app.Main(os.Args[1:]))
	}
	testbed.Main(m)
}

// km0 runs a command line to its end.
func km0(t *testing.T, args []string, env ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append([]string{asKm0 + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestEveryCommandLineEndsWithOneClearLineAndItsCode(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	dir := t.TempDir()
	full := filepath.Join(dir, "full")
	require.NoError(t, os.MkdirAll(full, 0o755))
	precious := filepath.Join(full, "thesis.txt")
	require.NoError(t, os.WriteFile(precious, []byte("all of it"), 0o644))
	file := filepath.Join(dir, "km0.yaml")
	require.NoError(t, os.WriteFile(file, []byte("consumers:\n  pagos.cobros: {timeout: 3s}\n"), 0o644))

	for name, c := range map[string]struct {
		args   []string
		env    []string
		code   int
		stdout string
		stderr string
	}{
		"unknown command":         {args: []string{"sreve"}, code: 2, stderr: `^km0: unknown command "sreve"\nTry: km0 --help\n$`},
		"unknown flag":            {args: []string{"serve", "--htp", "x"}, code: 2, stderr: `^km0: unknown flag: --htp\nTry: km0 --help\n$`},
		"argument too many":       {args: []string{"serve", "now"}, code: 2, stderr: `^km0: unknown command "now"\nTry`},
		"demonstration of none":   {args: []string{"demo", "--orders", "0"}, code: 2, stderr: `^km0: --orders must be at least 10`},
		"gateway that answers -1": {args: []string{"gateway", "--unavailable", "-1"}, code: 1, stderr: `^km0: .*Unavailable -1: want a fraction`},
		"help":                    {args: []string{"--help"}, stdout: `(?s)demo.*gateway.*serve.*version`},
		"help of serve":           {args: []string{"serve", "--help"}, stdout: `KM0_DATABASES_MAX_CONNS +connections of each pool`},
		"version":                 {args: []string{"version"}, stdout: `^km0 \S+\n$`},
		"wrong value":             {args: []string{"--http", "8080"}, code: 1, stderr: `^km0: configuration: --http: http\.addr: "8080" is no host:port\n$`},
		"misspelt variable":       {env: []string{"KM0_HTP_ADDR=x"}, code: 1, stderr: `^km0: configuration: .*KM0_HTP_ADDR is unknown; did you mean KM0_HTTP_ADDR\?\n$`},
		"no such file":            {args: []string{"--config", "/nowhere.yaml"}, code: 1, stderr: `^km0: configuration: file: open /nowhere.yaml: no such file or directory\n$`},
		"no such consumer":        {env: []string{"KM0_CONFIG=" + file}, code: 1, stderr: `km0\.yaml:2:3: consumers\.pagos\.cobros: there is no such consumer; did you mean pagos\.cobro\?\n$`},
		"taken port":              {args: []string{"--ops", taken.Addr().String(), "--http", "127.0.0.1:0"}, code: 1, stderr: `^km0: address \S+ is taken by another program: stop it, or choose another address with --ops\n$`},
		"taken port of gateway":   {args: []string{"gateway", "--addr", taken.Addr().String()}, code: 1, stderr: `choose another address with --addr\n$`},
		"unreachable state":       {args: []string{"--state", "/dev/null/km0", "--http", "127.0.0.1:0", "--ops", "127.0.0.1:0"}, code: 1, stderr: `^km0: .*/dev/null[^\n]*choose another one\n$`},
		"folder of somebody":      {args: []string{"demo", "--state", full}, code: 1, stderr: `full is not empty`},
		"databases away": {
			env: []string{"KM0_DSN_PEDIDOS=postgres://127.0.0.1:1/a", "KM0_DSN_INVENTARIO=postgres://127.0.0.1:1/b", "KM0_DSN_PAGOS=postgres://127.0.0.1:1/c",
				"KM0_DSN_BUS=postgres://u:geheim@127.0.0.1:1/d", "KM0_HTTP_ADDR=127.0.0.1:0", "KM0_OPS_ADDR=127.0.0.1:0"},
			code: 1, stderr: `^km0: start databases: connect to database "d" at 127\.0\.0\.1:1 as user "u": [^\n]*refused[^\n]*\n$`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := km0(t, c.args, c.env...)
			require.Equal(t, c.code, code, stderr)
			require.Regexp(t, c.stdout, stdout)
			require.Regexp(t, c.stderr, stderr)
			if c.stderr == "" {
				require.Empty(t, stderr)
			}
			if c.stdout == "" {
				require.Empty(t, stdout)
			}
			require.FileExists(t, precious)
		})
	}
}
