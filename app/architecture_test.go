package app_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// forbidden says why a file in folder from (relative to the top) must not
// import path, or "".
func forbidden(from, path string) string {
	layer, rest, _ := strings.Cut(from, "/")
	ours, isOurs := strings.CutPrefix(path, "km0/")
	target, targetRest, _ := strings.Cut(ours, "/")
	switch {
	case layer == "platform" && isOurs && (target == "modules" || target == "app"):
		return "platform knows nothing of orders: it must not import " + path
	case layer == "migrations" && isOurs:
		return "migrations are SQL: they import nothing of km0"
	case isOurs && target == "app" && layer != "app" && from != ".":
		return "only app and main know the whole: nobody else imports " + path
	case layer != "modules":
		return ""
	}
	module, inside, _ := strings.Cut(rest, "/")
	switch {
	case inside == "contract" && isOurs && ours != from: // its own tests may
		return "a contract is for others: it imports nothing of km0, not " + path
	case isOurs && target == "modules":
		other, part, _ := strings.Cut(targetRest, "/")
		if other != module && part != "contract" {
			return "a module imports another module's contract at most, not " + path
		}
	case isOurs && (strings.HasPrefix(ours, "platform/bus") || strings.HasPrefix(ours, "platform/keyed") || strings.HasPrefix(ours, "platform/deadletter")):
		return "a module names its topic and its consumers; " + path + " is app's business"
	case strings.Contains(path, "ThreeDotsLabs/watermill"), strings.Contains(path, "sarama"), strings.Contains(path, "amqp091"):
		return "a module knows no broker: it must not import " + path
	}
	return ""
}

func TestEveryImportFollowsTheArrows(t *testing.T) {
	t.Parallel()
	files := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2 {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		files++
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		from, err := filepath.Rel("..", filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if why := forbidden(filepath.ToSlash(from), imported); why != "" {
				t.Errorf("%s: %s", path, why)
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, files, 50, "the walk must have seen the tree")
}

func TestTheArrowsForbidWhatTheyShould(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, path string
		allowed    bool
	}{
		{"platform/outbox", "km0/platform/keyed", true},
		{"platform/outbox", "km0/modules/pedidos", false},
		{"platform/outbox", "km0/modules/pedidos/contract", false},
		{"platform/testbed", "km0/migrations", true},
		{"platform/testbed", "km0/app/config", false},
		{"modules/pedidos", "km0/modules/pagos/contract", true},
		{"modules/pedidos", "km0/modules/pagos", false},
		{"modules/pagos", "km0/modules/pagos/gateway", true},
		{"modules/pedidos", "km0/modules/pagos/gateway", false},
		{"modules/pedidos", "km0/platform/outbox", true},
		{"modules/pedidos", "km0/platform/bus/postgres", false},
		{"modules/pedidos", "github.com/ThreeDotsLabs/watermill/message", false},
		{"modules/pedidos/contract", "km0/platform/outbox", false},
		{"modules/pedidos", "km0/app", false},
		{"migrations", "km0/platform/postgres", false},
		{"app/demo", "km0/app/reconcile", true},
		{"app", "km0/platform/bus/postgres", true},
		{".", "km0/app", true},
	} {
		t.Run(fmt.Sprintf("%s imports %s", c.from, c.path), func(t *testing.T) {
			require.Equal(t, c.allowed, forbidden(c.from, c.path) == "")
		})
	}
}
