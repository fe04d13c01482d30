package inventario_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/migrations"
	"km0/modules/inventario"
	pedidos "km0/modules/pedidos/contract"
	"km0/platform/consumer"
	"km0/platform/envelope"
	"km0/platform/outbox"
	"km0/platform/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// rig is the module on a database of its own. Events go straight to its
// handlers, without the inbox: what they promise holds even for an event whose
// record was purged.
type rig struct {
	pool     *pgxpool.Pool
	module   *inventario.Module
	handlers map[string]consumer.Handler // by type of event
}

func start(t testing.TB) *rig {
	t.Helper()
	pool := testbed.ModuleDatabase(t, "inventario", migrations.Inventario())
	r := &rig{pool: pool, handlers: map[string]consumer.Handler{}}
	r.module = inventario.New(inventario.Deps{DB: pool, Outbox: outbox.New(outbox.Config{Pool: pool, Origen: "inventario"})})
	for _, c := range r.module.Consumers() {
		for tipo, h := range c.Handlers {
			require.NotContains(t, r.handlers, tipo)
			r.handlers[tipo] = h
		}
	}
	return r
}

// deliver runs the handler of an event in a transaction, as the platform does:
// a rejection is rolled back and what follows it runs in a second one. If the
// process is killed, the last transaction is not committed.
func (r *rig) deliver(ctx context.Context, tipo string, datos any, killed bool) error {
	raw, err := json.Marshal(datos)
	if err != nil {
		return err
	}
	e := envelope.Event{ID: outbox.NewID(), Tipo: tipo, Version: 1, Origen: "pedidos", Datos: raw}
	err = r.commit(ctx, killed, func(tx pgx.Tx) error { return r.handlers[tipo](ctx, tx, e) })
	var rejection *consumer.Rejection
	if errors.As(err, &rejection) {
		return r.commit(ctx, killed, func(tx pgx.Tx) error { return rejection.Then(ctx, tx) })
	}
	return err
}

func (r *rig) commit(ctx context.Context, killed bool, work func(pgx.Tx) error) error {
	tx, err := r.pool.Begin(ctx)
	if err != nil {
		return err
	}
	if err := work(tx); err != nil || killed {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx)
}

func (r *rig) restock(t require.TestingT, producto string, unidades int) {
	_, err := r.pool.Exec(context.Background(), `
		INSERT INTO stock VALUES ($1, $2) ON CONFLICT (producto) DO UPDATE SET unidades = excluded.unidades`, producto, unidades)
	require.NoError(t, err)
}

func (r *rig) stock(t require.TestingT, producto string) int {
	s, err := r.module.Producto(context.Background(), producto)
	require.NoError(t, err)
	return int(s.Unidades)
}

func (r *rig) number(t require.TestingT, query string, args ...any) (n int) {
	require.NoError(t, r.pool.QueryRow(context.Background(), `SELECT `+query, args...).Scan(&n))
	return n
}

func order(id string, lineas ...pedidos.Linea) pedidos.Pedido {
	return pedidos.Pedido{ID: id, Cliente: "ana", Mercado: "girona", Tarjeta: "tok_ana", Lineas: lineas}
}

func line(producto string, cantidad int) pedidos.Linea {
	return pedidos.Linea{Producto: producto, Cantidad: int32(cantidad), PrecioCentimos: 100}
}
