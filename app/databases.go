package app

import (
	"context"
	"errors"
	"io/fs"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"

	"km0/migrations"
	"km0/platform/keyed"
	"km0/platform/lifecycle"
	"km0/platform/outbox"
	"km0/platform/postgres"
	"km0/platform/postgres/embedded"
)

func (a *App) privatePostgres() lifecycle.Component {
	failed := make(chan error, 1)
	stopping := make(chan struct{})
	return lifecycle.Component{
		Name: "postgres", Failed: failed,
		Start: func(ctx context.Context) (err error) {
			// Room for every pool of this process and for a person's psql.
			connections := max(200, (len(catalogue)+1)*(a.cfg.Databases.MaxConns+2)+20)
			cfg := embedded.Config{
				Dir: a.cfg.State, BinDir: a.cfg.Postgres.Bin, Logger: a.logger,
				Params: map[string]string{"max_connections": strconv.Itoa(connections)},
			}
			if a.progress != nil {
				cfg.Progress = a.progress
			}
			if a.server, err = embedded.Start(ctx, cfg); err != nil {
				return err
			}
			names := []string{"km0_bus"}
			for _, m := range catalogue {
				names = append(names, "km0_"+m.name)
			}
			if err := a.server.CreateDatabases(ctx, names...); err != nil {
				return errors.Join(err, a.server.Stop(context.WithoutCancel(ctx)))
			}
			go func() {
				select {
				case <-a.server.Done():
					failed <- errors.New("the private PostgreSQL ended")
				case <-stopping:
				}
			}()
			return nil
		},
		Stop: func(ctx context.Context) error {
			close(stopping)
			return a.server.Stop(ctx)
		},
	}
}

// database is one that this process uses.
type database struct {
	name string
	pool *pgxpool.Pool
}

// databases are in the order of a.claims.
func (a *App) databases() []database {
	list := []database{{"bus", a.busPool}}
	for _, h := range a.hosted {
		list = append(list, database{h.name, h.pool})
	}
	return list
}

func (a *App) dsn(name string) string {
	if a.server != nil {
		return a.server.DSN("km0_" + name)
	}
	return a.cfg.Databases.DSN(name)
}

func (a *App) openDatabases(ctx context.Context) (err error) {
	if a.busPool, err = a.openDatabase(ctx, "bus", map[string]func() fs.FS{"bus": migrations.Bus}); err != nil {
		return err
	}
	for _, m := range catalogue {
		if !a.cfg.Hosts(m.name) {
			continue
		}
		h := &hosted{name: m.name}
		a.hosted = append(a.hosted, h)
		h.pool, err = a.openDatabase(ctx, m.name, map[string]func() fs.FS{"plataforma": migrations.Plataforma, m.name: m.migrations})
		if err != nil {
			_ = a.closeDatabases(ctx)
			return err
		}
		h.outbox = outbox.New(outbox.Config{Pool: h.pool, Origen: h.name})
	}
	for _, db := range a.databases() {
		a.claims = append(a.claims, keyed.NewClaims(db.pool.Config().ConnConfig.Copy(), a.logger))
	}
	return nil
}

func (a *App) openDatabase(ctx context.Context, name string, sets map[string]func() fs.FS) (*pgxpool.Pool, error) {
	pool, err := postgres.Open(ctx, a.dsn(name), postgres.PoolOptions{MaxConns: int32(a.cfg.Databases.MaxConns), ApplicationName: "km0 " + name})
	if err != nil {
		return nil, err
	}
	for _, set := range []string{"plataforma", name} { // the module's own tables come last
		if files := sets[set]; files != nil {
			if err := postgres.Migrate(ctx, pool, set, files()); err != nil {
				pool.Close()
				return nil, err
			}
		}
	}
	return pool, nil
}

func (a *App) closeDatabases(context.Context) error {
	for _, h := range a.hosted {
		if h.pool != nil {
			h.pool.Close()
		}
	}
	if a.busPool != nil {
		a.busPool.Close()
	}
	return nil
}
