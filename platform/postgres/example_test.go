package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"km0/migrations"
	"km0/platform/postgres"
)

// A module opens its database at boot, brings it up to date, and purges it now
// and then.
func Example() {
	ctx := context.Background()
	pool, err := postgres.Open(ctx, "postgres://km0@localhost/km0_pedidos", postgres.PoolOptions{ApplicationName: "pedidos"})
	if err != nil {
		fmt.Println(err, "- wait and try again:", postgres.Unavailable(err))
		return
	}
	defer pool.Close()

	var newer *postgres.NewerSchemaError
	if err := postgres.Migrate(ctx, pool, "plataforma", migrations.Plataforma()); errors.As(err, &newer) {
		fmt.Println("an older binary:", err)
		return
	}

	removed, err := postgres.Purge(ctx, pool, `
		DELETE FROM mensajes_procesados WHERE (id_mensaje, consumidor) IN (
		    SELECT id_mensaje, consumidor FROM mensajes_procesados WHERE procesado_en < $2
		    ORDER BY procesado_en LIMIT $1 FOR UPDATE SKIP LOCKED)`,
		1000, time.Now().AddDate(0, 0, -14))
	fmt.Println(removed, err)
}
