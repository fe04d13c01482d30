package postgres

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/platform/testbed"
)

// TestHotStatementsWalkAnIndexOnALargeTable: what subscribers do again and
// again must not cost more because much is waiting, whatever the planner knows
// of the tables.
func TestHotStatementsWalkAnIndexOnALargeTable(t *testing.T) {
	t.Parallel()
	for name, delayed := range map[string]string{"nothing delayed": "false", "much delayed": "n % 10 = 0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := testbed.BusDatabase(t)
			_, err := pool.Exec(t.Context(), `ANALYZE`)
			require.NoError(t, err)
			for _, statement := range []string{
				`INSERT INTO suscripciones (consumidor, topico) VALUES ('a', 'pedidos.eventos'), ('b', 'pedidos.eventos'), ('c', 'otro')`,
				`INSERT INTO mensajes (topico, id, tipo, clave, carril, cabeceras, carga)
				 SELECT 'pedidos.eventos', n::text, 'pedido.creado', 'P-' || n % 2000, n % 32, '{}', '{}' FROM generate_series(1, 100000) n`,
				`INSERT INTO entregas (consumidor, posicion, carril, clave, no_antes)
				 SELECT c, n, n % 32, 'P-' || n % 2000, CASE WHEN ` + delayed + ` THEN now() + interval '1 hour' END
				 FROM generate_series(1, 100000) n, unnest('{a,b}'::text[]) c`,
			} {
				_, err := pool.Exec(t.Context(), statement)
				require.NoError(t, err)
			}
			requireIndexes(t, pool, "analysed when it was empty")
			_, err = pool.Exec(t.Context(), `ANALYZE`)
			require.NoError(t, err)
			requireIndexes(t, pool, "analysed")
		})
	}
}

func requireIndexes(t *testing.T, pool *pgxpool.Pool, state string) {
	t.Helper()
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		for name, s := range map[string]struct{ types, query, args string }{
			"fetch all lanes":  {"text, bigint, smallint[], text[], bigint, bigint[]", fetchQuery, "'a', 0, NULL, '{}', 512, '{}'"},
			"fetch some lanes": {"text, bigint, smallint[], text[], bigint, bigint[]", fetchQuery, "'a', 50000, '{1,2,3}', '{P-1,P-2}', 512, '{}'"},
			"settle":           {"text, bigint[]", settleQuery, "'a', '{99001,99002,99003}'"},
			"purge":            {"bigint, bigint, interval", purgeQuery, "50000, 1000, '14 days'"},
		} {
			plan := explain(t, pool, mode, s.types, s.query, s.args)
			for _, bad := range []string{"Seq Scan on entregas", "Seq Scan on mensajes", "Sort"} {
				require.NotContains(t, plan, bad, "%s, %s, %s:\n%s", name, state, mode, plan)
			}
		}
	}
}

// explain gives the plan that a prepared statement gets.
func explain(t *testing.T, pool *pgxpool.Pool, mode, types, query, args string) string {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(t.Context())) }()
	_, err = tx.Exec(t.Context(), `SET LOCAL plan_cache_mode = `+mode)
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), neverSort) // as Fetch does
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `PREPARE q (`+types+`) AS `+query)
	require.NoError(t, err)
	rows, err := tx.Query(t.Context(), `EXPLAIN EXECUTE q (`+args+`)`, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `DEALLOCATE q`)
	require.NoError(t, err)
	return strings.Join(lines, "\n")
}
