package pagos

import (
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"km0/platform/outbox"
)

// Deps is what the module needs.
type Deps struct {
	DB       *pgxpool.Pool // its own database
	Outbox   *outbox.Outbox
	Pasarela Pasarela
	Logger   *slog.Logger
}

// Module is pagos. It is safe for concurrent use.
type Module struct {
	db       *pgxpool.Pool
	outbox   *outbox.Outbox
	pasarela Pasarela
	logger   *slog.Logger
}

// New builds the module.
func New(d Deps) *Module {
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	return &Module{db: d.DB, outbox: d.Outbox, pasarela: d.Pasarela, logger: d.Logger}
}
