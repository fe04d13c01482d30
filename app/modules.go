package app

import (
	"io/fs"
	"log/slog"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	"km0/migrations"
	"km0/modules/inventario"
	"km0/modules/pagos"
	"km0/modules/pedidos"
	"km0/platform/consumer"
	"km0/platform/outbox"
)

// module is what every module offers.
type module interface {
	Consumers() []consumer.Consumer
	Routes(api huma.API)
}

// parts is what a module is built from.
type parts struct {
	db       *pgxpool.Pool
	outbox   *outbox.Outbox
	pasarela pagos.Pasarela
	logger   *slog.Logger
}

// entry is one module: its name (and that of its database without the prefix
// km0_), its tables, and how it is built.
type entry struct {
	name       string
	migrations func() fs.FS
	build      func(parts) module
}

// catalogue is the list of modules, one line each.
var catalogue = []entry{
	{"pedidos", migrations.Pedidos, func(p parts) module {
		return pedidos.New(pedidos.Deps{DB: p.db, Outbox: p.outbox, Logger: p.logger})
	}},
	{"inventario", migrations.Inventario, func(p parts) module {
		return inventario.New(inventario.Deps{DB: p.db, Outbox: p.outbox, Logger: p.logger})
	}},
	{"pagos", migrations.Pagos, func(p parts) module {
		return pagos.New(pagos.Deps{DB: p.db, Outbox: p.outbox, Pasarela: p.pasarela, Logger: p.logger})
	}},
}

// consumerNames are those of all modules, hosted here or not: processes may
// share a configuration file.
func consumerNames() (names []string) {
	for _, m := range catalogue {
		for _, c := range m.build(parts{}).Consumers() {
			names = append(names, c.Name)
		}
	}
	return names
}
