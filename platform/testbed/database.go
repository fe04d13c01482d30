package testbed

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"km0/migrations"
	"km0/platform/postgres"
)

// Set is a migration set: see postgres.Migrate.
type Set struct {
	Name  string
	Files fs.FS
}

// Plataforma is what every module's database begins with, and Bus is the
// database of the postgres bus driver.
func Plataforma() Set { return Set{Name: "plataforma", Files: migrations.Plataforma()} }
func Bus() Set        { return Set{Name: "bus", Files: migrations.Bus()} }

// ModuleDatabase is a pool on a fresh database with the plataforma set and,
// unless files is nil, a module's own. Database and pool end with the test.
func ModuleDatabase(t testing.TB, name string, files fs.FS) *pgxpool.Pool {
	t.Helper()
	sets := []Set{Plataforma()}
	if files != nil {
		sets = append(sets, Set{Name: name, Files: files})
	}
	return Pool(t, Postgres(t).Database(t, sets...))
}

// BusDatabase is a pool on a fresh bus database. Both end with the test.
func BusDatabase(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return Pool(t, Postgres(t).Database(t, Bus()))
}

// Pool opens a pool of up to 16 connections, closed at the end of the test.
func Pool(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.Open(context.Background(), dsn, postgres.PoolOptions{MaxConns: 16, ApplicationName: t.Name()})
	if err != nil {
		t.Fatalf("open pool: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

var databases atomic.Int64

// Database makes a fresh database with the given sets, empty without any, and
// returns its DSN. It is dropped at the end of the test. Migrations run once
// per combination of sets and process; later databases are copies (about
// 0.1 s).
func (s *Server) Database(t testing.TB, sets ...Set) string {
	t.Helper()
	ctx := context.Background()
	name := fmt.Sprintf("%s%d", s.prefix, databases.Add(1))
	template := "template0"
	if len(sets) > 0 {
		var err error
		if template, err = s.templates.of(ctx, s, sets); err != nil {
			t.Fatalf("template database: %v", err)
		}
	}
	if err := s.exec(ctx, `CREATE DATABASE %s TEMPLATE %s`, name, template); err != nil {
		t.Fatal(err)
	}
	if s.disposable {
		return s.DSN(name)
	}
	t.Cleanup(func() {
		if err := s.exec(ctx, `DROP DATABASE IF EXISTS %s WITH (FORCE)`, name); err != nil {
			t.Error(err)
		}
	})
	return s.DSN(name)
}

// exec runs one statement about databases, whose names it quotes.
func (s *Server) exec(ctx context.Context, format string, names ...string) error {
	quoted := make([]any, len(names))
	for i, name := range names {
		quoted[i] = pgx.Identifier{name}.Sanitize()
	}
	statement := fmt.Sprintf(format, quoted...)
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

// templates are the migrated databases that others are copied from, by the
// content of their sets.
type templates struct {
	mu    sync.Mutex
	names map[[sha256.Size]byte]string
}

func (c *templates) of(ctx context.Context, s *Server, sets []Set) (string, error) {
	key, err := fingerprint(sets)
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if name, ok := c.names[key]; ok {
		return name, nil
	}
	name := fmt.Sprintf("%stemplate%d", s.prefix, databases.Add(1))
	if err := s.exec(ctx, `CREATE DATABASE %s TEMPLATE %s`, name, "template0"); err != nil {
		return "", err
	}
	if err := migrate(ctx, s.DSN(name), sets); err != nil {
		return "", err
	}
	if c.names == nil {
		c.names = map[[sha256.Size]byte]string{}
	}
	c.names[key] = name
	return name, nil
}

func (c *templates) drop(ctx context.Context, s *Server) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, name := range c.names {
		if err := s.exec(ctx, `DROP DATABASE IF EXISTS %s WITH (FORCE)`, name); err != nil {
			return err
		}
		delete(c.names, key)
	}
	return nil
}

func migrate(ctx context.Context, dsn string, sets []Set) error {
	pool, err := postgres.Open(ctx, dsn, postgres.PoolOptions{MaxConns: 1})
	if err != nil {
		return err
	}
	defer pool.Close()
	for _, set := range sets {
		if err := postgres.Migrate(ctx, pool, set.Name, set.Files); err != nil {
			return err
		}
	}
	return nil
}

func fingerprint(sets []Set) (key [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, set := range sets {
		fmt.Fprintf(h, "set %q\n", set.Name)
		err = fs.WalkDir(set.Files, ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := fs.ReadFile(set.Files, path)
			fmt.Fprintf(h, "file %q %q\n", path, text)
			return err
		})
		if err != nil {
			return key, fmt.Errorf("read migration set %q: %w", set.Name, err)
		}
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// With is a DSN, in either form, with one more parameter, such as
// statement_timeout=200 or pool_max_conns=2; a dbname leads to another database.
func With(dsn, name, value string) string {
	u, err := url.Parse(dsn)
	if err != nil || !strings.HasPrefix(u.Scheme, "postgres") {
		return dsn + " " + name + "='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "'"
	}
	if name == "dbname" {
		u.Path = "/" + value
		return u.String()
	}
	parameters := u.Query()
	parameters.Set(name, value)
	u.RawQuery = strings.ReplaceAll(parameters.Encode(), "+", "%20") // pgx, as libpq, takes + for a plus
	return u.String()
}
