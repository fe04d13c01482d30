package embedded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DSN leads to a database of the server through its unix socket, as user km0. It
// does not look whether the database exists ("postgres" always does), and it is
// good until Stop.
func (s *Server) DSN(database string) string {
	quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(database)
	return fmt.Sprintf("host=%s port=%s user=%s dbname='%s' sslmode=disable", s.socket, socketPort, role, quoted)
}

const longestName = 63 // bytes; PostgreSQL would cut the rest off

// CreateDatabases makes those of the databases that do not exist yet. It may be
// called again, and by several goroutines at once.
func (s *Server) CreateDatabases(ctx context.Context, names ...string) error {
	for _, name := range names {
		if name == "" || len(name) > longestName {
			return fmt.Errorf("create database %q: the name must have 1 to %d bytes", name, longestName)
		}
	}
	s.creating.Lock()
	defer s.creating.Unlock()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("create databases: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, "SELECT datname FROM pg_database")
	if err != nil {
		return fmt.Errorf("list databases: %w", err)
	}
	there, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("list databases: %w", err)
	}
	for _, name := range names {
		if slices.Contains(there, name) {
			continue
		}
		// template0: nobody can be connected to it, which would refuse the copy.
		_, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE template0")
		if err != nil && !existsAlready(err) {
			return fmt.Errorf("create database %s: %w", name, err)
		}
		there = append(there, name)
	}
	return nil
}

// existsAlready: another program was quicker, shortly before or at the same time.
func existsAlready(err error) bool {
	const duplicateDatabase, uniqueViolation = "42P04", "23505"
	var refused *pgconn.PgError
	return errors.As(err, &refused) && (refused.Code == duplicateDatabase || refused.Code == uniqueViolation)
}
