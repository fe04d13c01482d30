package pagos_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/migrations"
	"km0/modules/pagos"
	"km0/modules/pagos/gateway"
	pedidos "km0/modules/pedidos/contract"
	"km0/platform/consumer"
	"km0/platform/envelope"
	"km0/platform/outbox"
	"km0/platform/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// rig is the module on a database of its own and a gateway with its ledger.
// Events go straight to its handlers, without the inbox: what they promise
// holds even for an event whose record was purged.
type rig struct {
	pool     *pgxpool.Pool
	gateway  *gateway.Client
	module   *pagos.Module
	handlers map[string]consumer.Handler // by type of event
}

func start(t testing.TB) *rig {
	t.Helper()
	pool := testbed.ModuleDatabase(t, "pagos", migrations.Pagos())
	simulator, err := gateway.OpenSimulator(filepath.Join(testbed.Dir(t), "gateway.db"), gateway.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, simulator.Close()) })
	server := httptest.NewServer(simulator.Handler())
	t.Cleanup(server.Close)
	client, err := gateway.NewClient(server.URL, 10*time.Second)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	r := &rig{pool: pool, gateway: client, handlers: map[string]consumer.Handler{}}
	r.module = r.with(client)
	for _, c := range r.module.Consumers() {
		for tipo, h := range c.Handlers {
			require.NotContains(t, r.handlers, tipo)
			r.handlers[tipo] = h
		}
	}
	return r
}

func (r *rig) with(p pagos.Pasarela) *pagos.Module {
	return pagos.New(pagos.Deps{DB: r.pool, Outbox: outbox.New(outbox.Config{Pool: r.pool, Origen: "pagos"}), Pasarela: luck{p}})
}

// fate is what becomes of one delivery.
type fate int

const (
	fine       fate = iota
	killed          // before COMMIT
	unreached       // the gateway was not
	unanswered      // the gateway did it, and its answer was lost
)

type fateKey struct{}

// luck is a gateway on the far side of a network.
type luck struct{ pagos.Pasarela }

func (l luck) Cobrar(ctx context.Context, c gateway.Cobro) (gateway.Recibo, error) {
	if ctx.Value(fateKey{}) == unreached {
		return gateway.Recibo{}, gateway.ErrNoDisponible
	}
	r, err := l.Pasarela.Cobrar(ctx, c)
	if ctx.Value(fateKey{}) == unanswered {
		return gateway.Recibo{}, gateway.ErrNoDisponible
	}
	return r, err
}

func (l luck) Anular(ctx context.Context, clave string) (gateway.Devolucion, error) {
	if ctx.Value(fateKey{}) == unreached {
		return gateway.Devolucion{}, gateway.ErrNoDisponible
	}
	d, err := l.Pasarela.Anular(ctx, clave)
	if ctx.Value(fateKey{}) == unanswered {
		return gateway.Devolucion{}, gateway.ErrNoDisponible
	}
	return d, err
}

// deliver runs the handler of an event in a transaction, as the platform does:
// a rejection is rolled back and what follows it runs in a second one.
func (r *rig) deliver(ctx context.Context, tipo string, datos any, f fate) error {
	raw, err := json.Marshal(datos)
	if err != nil {
		return err
	}
	ctx = context.WithValue(ctx, fateKey{}, f)
	e := envelope.Event{ID: outbox.NewID(), Tipo: tipo, Version: 1, Origen: "pedidos", Datos: raw}
	err = r.commit(ctx, f, func(tx pgx.Tx) error { return r.handlers[tipo](ctx, tx, e) })
	var rejection *consumer.Rejection
	if errors.As(err, &rejection) {
		return r.commit(ctx, f, func(tx pgx.Tx) error { return rejection.Then(ctx, tx) })
	}
	return err
}

func (r *rig) commit(ctx context.Context, f fate, work func(pgx.Tx) error) error {
	tx, err := r.pool.Begin(ctx)
	if err != nil {
		return err
	}
	if err := work(tx); err != nil || f == killed {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx)
}

func (r *rig) number(t require.TestingT, query string, args ...any) (n int) {
	require.NoError(t, r.pool.QueryRow(context.Background(), `SELECT `+query, args...).Scan(&n))
	return n
}

// entry is what the gateway has under the key of an order.
func (r *rig) entry(t require.TestingT, pedidoID string) (found gateway.Asiento) {
	require.NoError(t, r.gateway.Libro(context.Background(), func(a gateway.Asiento) error {
		if a.Clave == "cobro-"+pedidoID {
			found = a
		}
		return nil
	}))
	return found
}

func order(id, tarjeta string, precio int64) pedidos.Pedido {
	return pedidos.Pedido{ID: id, Cliente: "ana", Mercado: "girona", Tarjeta: tarjeta,
		Lineas: []pedidos.Linea{{Producto: "queso-curado", Cantidad: 2, PrecioCentimos: precio}}}
}

func cancelled(id string) pedidos.Cancelado { return pedidos.Cancelado{ID: id, Motivo: "cliente"} }
