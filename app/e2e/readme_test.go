package e2e_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"km0/app/config"
	"km0/app/demo"
	"km0/modules/pagos/gateway"
)

var (
	shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")
	yamlBlock  = regexp.MustCompile("(?s)```yaml\n(.*?)```")
)

// TestEveryCommandOfREADMEDoesWhatItSays runs them; the two that start
// everything (go run ., make test) are what runs this.
func TestEveryCommandOfREADMEDoesWhatItSays(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	s := newSystem(t, gateway.Options{})
	p := s.start(t)
	ran := map[string]int{} // by kind
	for _, block := range shellBlock.FindAllStringSubmatch(string(readme), -1) {
		for _, command := range commands(block[1]) {
			switch {
			case strings.HasPrefix(command, "curl"):
				ran["curl"]++
				out := shell(t, strings.ReplaceAll(command, "http://127.0.0.1:8080", p.api))
				require.Regexp(t, `201 Created|"estado"|"unidades"`, out, command)
				becomes(t, p, "P-2026-000123", "pagado")
			case strings.HasPrefix(command, "go run . demo"):
				ran["demo"]++
				bad := shell(t, "timeout 120 "+p.cmd.Path+" demo --orders 60 --rate 60 --json")
				var result demo.Result
				require.NoError(t, json.Unmarshal([]byte(bad), &result))
				require.True(t, result.OK, "%+v", result.Checks)
				require.Equal(t, 1, result.WorkerKills)
			case strings.HasPrefix(command, "go test"), command == "make bench":
				ran["bench"]++ // figures: too long for a test, see the benchmarks themselves
			case strings.HasPrefix(command, "go run .") || command == "make test":
				ran["front door"]++
			default:
				t.Errorf("no test runs the command %q of README", command)
			}
		}
	}
	require.GreaterOrEqual(t, ran["curl"], 3)
	require.Equal(t, 1, ran["demo"])
	require.Equal(t, 2, ran["front door"])
	p.stop()
}

// commands splits a block at its lines, but not inside quotes.
func commands(block string) (list []string) {
	var command strings.Builder
	for _, line := range strings.Split(block, "\n") {
		command.WriteString(line + "\n")
		if strings.Count(command.String(), "'")%2 != 0 {
			continue
		}
		text, _, _ := strings.Cut(command.String(), " # ")
		if text = strings.TrimSpace(text); text != "" {
			list = append(list, text)
		}
		command.Reset()
	}
	return list
}

func shell(t *testing.T, command string) string {
	t.Helper()
	cmd := exec.Command("bash", "-c", command)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s\n%s", command, out)
	return string(out)
}

func TestTheConfigurationOfREADMEIsValid(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	block := yamlBlock.FindSubmatch(readme)
	require.NotNil(t, block)
	path := t.TempDir() + "/km0.yaml"
	require.NoError(t, os.WriteFile(path, block[1], 0o600))
	c, err := config.Load(path, nil, nil)
	require.NoError(t, err)
	require.Equal(t, 32, c.Consumer("pagos.cobro").Concurrency)
}
