package testbed

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"km0/platform/postgres/embedded"
)

// Server is a PostgreSQL that the tests of one process share.
type Server struct {
	dsn        func(database string) string
	prefix     string // of its databases' names
	disposable bool   // goes away as a whole: databases need no dropping
	templates  templates
}

// DSN leads to a database of the server; "postgres" is always there.
func (s *Server) DSN(database string) string { return s.dsn(database) }

// Postgres is the private server of this process, started at first use, quick
// rather than safe unless KM0_TEST_FSYNC=1; or the server of KM0_TEST_DSN.
func Postgres(t testing.TB) *Server {
	t.Helper()
	return must(t, shared)
}

// PostgresDurable is a second private server, as safe as in production: for
// benchmarks, and for tests of what a power cut leaves.
func PostgresDurable(t testing.TB) *Server {
	t.Helper()
	return must(t, durable)
}

func must(t testing.TB, server func() (*Server, error)) *Server {
	t.Helper()
	s, err := server()
	if err != nil {
		t.Fatalf("PostgreSQL for tests: %v", err)
	}
	return s
}

var (
	shared = sync.OnceValues(func() (*Server, error) {
		if dsn := os.Getenv("KM0_TEST_DSN"); dsn != "" {
			return existing(dsn)
		}
		return start(os.Getenv("KM0_TEST_FSYNC") != "1")
	})
	durable = sync.OnceValues(func() (*Server, error) { return start(false) })
)

func start(fast bool) (*Server, error) {
	dir, err := newDir()
	if err != nil {
		return nil, err
	}
	engine, err := startEngine(dir, fast, map[string]string{"max_connections": "800"})
	if err != nil {
		return nil, err
	}
	return &Server{dsn: engine.DSN, prefix: "t"}, nil
}

// startEngine starts a server whose state is below dir. Main stops it, if
// nobody does before.
func startEngine(dir string, fast bool, params map[string]string) (*embedded.Server, error) {
	ctx, cancel := limited()
	defer cancel()
	engine, err := embedded.Start(ctx, embedded.Config{Dir: dir, Fast: fast, Params: params, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	AtEnd(func() error {
		ctx, cancel := limited()
		defer cancel()
		return engine.Stop(ctx)
	})
	return engine, nil
}

func existing(dsn string) (*Server, error) {
	s := &Server{
		dsn:    func(database string) string { return With(dsn, "dbname", database) },
		prefix: fmt.Sprintf("km0_test_%d_", os.Getpid()),
	}
	AtEnd(func() error { return s.templates.drop(context.Background(), s) })
	return s, nil
}
