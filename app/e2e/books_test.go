package e2e_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/app/reconcile"
	"km0/modules/pagos/gateway"
)

// TestTheBooksNoticeEveryKindOfDamage: the other tests are worth what
// reconcile sees. Each damage is made, found under its name, and undone.
func TestTheBooksNoticeEveryKindOfDamage(t *testing.T) {
	t.Parallel()
	s := newSystem(t, gateway.Options{})
	p := s.start(t)
	load(t, at(p), 20)()
	s.balanced(t, 20)
	p.stop()
	for name, c := range map[string]struct {
		pool       *pgxpool.Pool
		do, undo   string
		wantFailed string
	}{
		"an order without its event": {s.pools.Pedidos,
			`CREATE TABLE kept AS SELECT * FROM outbox; DELETE FROM outbox WHERE id = (SELECT id FROM outbox WHERE tipo = 'pedido.creado' LIMIT 1)`,
			`INSERT INTO outbox (id, agregado, agregado_id, tipo, version, carga, creado_en, publicado_en, topico, cabeceras, carril, posicion)
				OVERRIDING SYSTEM VALUE SELECT id, agregado, agregado_id, tipo, version, carga, creado_en, publicado_en, topico, cabeceras, carril, posicion
				FROM kept WHERE id NOT IN (SELECT id FROM outbox); DROP TABLE kept`,
			"every order has one pedido.creado"},
		"an event that never left": {s.pools.Inventario,
			`UPDATE outbox SET publicado_en = NULL WHERE posicion = 1`,
			`UPDATE outbox SET publicado_en = now() WHERE posicion = 1`,
			"no event waits for the bus"},
		"an event lost on the way": {s.pools.Bus,
			`CREATE TABLE kept AS SELECT * FROM mensajes; DELETE FROM mensajes WHERE posicion = (SELECT max(posicion) FROM mensajes)`,
			`INSERT INTO mensajes OVERRIDING SYSTEM VALUE SELECT * FROM kept WHERE posicion NOT IN (SELECT posicion FROM mensajes); DROP TABLE kept`,
			"every event is on the bus"},
		"two events of an order swapped": {s.pools.Bus, swap, swap, "no two events of a key are swapped"},
		"a unit deducted twice": {s.pools.Inventario,
			`UPDATE stock SET unidades = unidades - 1 WHERE producto = 'calabacin'`,
			`UPDATE stock SET unidades = unidades + 1 WHERE producto = 'calabacin'`,
			"stock is what it was minus what orders hold"},
		"a payment that pagos forgot": {s.pools.Pagos,
			`UPDATE pagos SET estado = 'rechazado' WHERE pedido_id = 'P-2026-000000'`,
			`UPDATE pagos SET estado = 'cobrado' WHERE pedido_id = 'P-2026-000000'`,
			"orders and the gateway's ledger agree"},
		"a cancelled order that keeps its stock": {s.pools.Inventario,
			`UPDATE descuentos SET estado = 'descontado' WHERE pedido_id = 'P-2026-000003'`,
			`UPDATE descuentos SET estado = 'devuelto' WHERE pedido_id = 'P-2026-000003'`,
			"orders and deductions agree"},
		"a total that is not what was charged": {s.pools.Pedidos,
			`UPDATE pedidos SET total_centimos = total_centimos + 1 WHERE id = 'P-2026-000000'`,
			`UPDATE pedidos SET total_centimos = total_centimos - 1 WHERE id = 'P-2026-000000'`,
			"charges minus refunds are what paid orders cost"},
		"a state without its history": {s.pools.Pedidos,
			`UPDATE historial_pedido SET estado = 'cancelado' WHERE pedido_id = 'P-2026-000000' AND estado = 'pagado'`,
			`UPDATE historial_pedido SET estado = 'pagado' WHERE pedido_id = 'P-2026-000000' AND estado = 'cancelado'`,
			"the history of every order ends in its state"},
		"a rejection that left no dead letter": {s.pools.Pagos,
			`CREATE TABLE kept AS SELECT * FROM mensajes_muertos; TRUNCATE mensajes_muertos`,
			`INSERT INTO mensajes_muertos OVERRIDING SYSTEM VALUE SELECT * FROM kept; DROP TABLE kept`,
			"no rejection event without its dead letter"},
	} {
		t.Run(name, func(t *testing.T) { // not parallel: the damages share the books
			_, err := c.pool.Exec(t.Context(), c.do)
			require.NoError(t, err)
			report, err := reconcile.Run(t.Context(), s.pools, s.ledger, s.stock)
			require.NoError(t, err)
			var failed []string
			for _, check := range report.Checks {
				if !check.OK {
					failed = append(failed, check.Name)
				}
			}
			require.Contains(t, failed, c.wantFailed)
			require.False(t, report.OK())
			_, err = c.pool.Exec(t.Context(), c.undo)
			require.NoError(t, err)
			report, err = reconcile.Run(t.Context(), s.pools, s.ledger, s.stock)
			require.NoError(t, err)
			require.True(t, report.OK(), "undone: %+v", report.Checks)
		})
	}
}

// swap exchanges the positions of what pedidos told of one paid order.
const swap = `
	WITH both_ AS (SELECT min(posicion) AS a, max(posicion) AS b FROM mensajes WHERE clave = 'P-2026-000000' AND topico = 'pedidos.eventos')
	UPDATE mensajes m SET id = o.id, cabeceras = o.cabeceras
	FROM both_, mensajes o WHERE m.posicion IN (a, b) AND o.posicion = a + b - m.posicion`
