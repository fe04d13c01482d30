package e2e_test

import (
	"bufio"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// metric reads one metric of a process by its name with labels.
func metric(t *testing.T, p *process, name string) float64 {
	t.Helper()
	res, err := client.Get(p.ops + "/metrics")
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if value, found := strings.CutPrefix(lines.Text(), name+" "); found {
			n, err := strconv.ParseFloat(value, 64)
			require.NoError(t, err)
			return n
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
