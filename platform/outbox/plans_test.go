package outbox

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/platform/testbed"
)

// TestHotStatementsWalkAnIndexOnALargeTable: what a relay does again and again
// must not cost more because much is published or much is waiting, whatever
// the planner knows of the table.
func TestHotStatementsWalkAnIndexOnALargeTable(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]struct{ published, aside string }{
		"everything pending":      {"false", "false"},
		"nearly all published":    {"n < 99000", "false"},
		"many set aside":          {"n < 50000", "n > 50000 AND n % 100 = 0"},
		"everything published":    {"true", "false"},
		"everything is set aside": {"false", "true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := testbed.ModuleDatabase(t, "prueba", nil)
			_, err := pool.Exec(t.Context(), `ANALYZE`)
			require.NoError(t, err)
			_, err = pool.Exec(t.Context(), fmt.Sprintf(`
				INSERT INTO outbox (id, agregado, agregado_id, tipo, carga, topico, carril, publicado_en, apartado_en)
				SELECT gen_random_uuid(), 'pedido', 'P-' || n %% 2000, 'pedido.creado', '{}', 'pedidos.eventos', n %% 32,
					CASE WHEN %s THEN now() END, CASE WHEN %s THEN now() END
				FROM generate_series(1, 100000) n`, s.published, s.aside))
			require.NoError(t, err)
			requireIndexes(t, pool, "analysed when it was empty")
			_, err = pool.Exec(t.Context(), `ANALYZE outbox`)
			require.NoError(t, err)
			requireIndexes(t, pool, "analysed")
		})
	}
}

func requireIndexes(t *testing.T, pool *pgxpool.Pool, state string) {
	t.Helper()
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		for name, s := range map[string]struct{ types, query, args string }{
			"fetch all lanes":  {"bigint, smallint[], text[], bigint, bigint[]", fetchQuery, "0, NULL, '{}', 2048, '{}'"},
			"fetch some lanes": {"bigint, smallint[], text[], bigint, bigint[]", fetchQuery, "50000, '{1,2,3}', '{P-1,P-2}', 2048, '{}'"},
			"settle":           {"bigint[]", settleQuery, "'{99001,99002,99003}'"},
			"set aside":        {"bigint, text", setAsideQuery, "99001, 'motivo'"},
			"purge":            {"bigint, interval", purgeQuery, "1000, '14 days'"},
		} {
			plan := explain(t, pool, mode, s.types, s.query, s.args)
			// A filter on publicado_en would read all that is too young to purge.
			for _, bad := range []string{"Seq Scan on outbox", "Sort", "Filter: (publicado_en <"} {
				require.NotContains(t, plan, bad, "%s, %s, %s:\n%s", name, state, mode, plan)
			}
		}
	}
}

func TestLagReadsNoPublishedRow(t *testing.T) {
	t.Parallel()
	pool := testbed.ModuleDatabase(t, "prueba", nil)
	_, err := pool.Exec(t.Context(), `
		INSERT INTO outbox (id, agregado, agregado_id, tipo, carga, topico, carril, publicado_en)
		SELECT gen_random_uuid(), 'pedido', 'P-' || n, 'pedido.creado', '{}', 'pedidos.eventos', n % 32, CASE WHEN n < 99900 THEN now() END
		FROM generate_series(1, 100000) n`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `ANALYZE outbox`)
	require.NoError(t, err)
	plan := explain(t, pool, "auto", "", lagQuery, "")
	require.NotContains(t, plan, "Seq Scan", plan)
}

// explain gives the plan that a prepared statement gets.
func explain(t *testing.T, pool *pgxpool.Pool, mode, types, query, args string) string {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(t.Context())) }()
	_, err = tx.Exec(t.Context(), `SET LOCAL plan_cache_mode = `+mode)
	require.NoError(t, err)
	if types != "" {
		types, args = "("+types+")", "("+args+")"
	}
	_, err = tx.Exec(t.Context(), `PREPARE q `+types+` AS `+query)
	require.NoError(t, err)
	rows, err := tx.Query(t.Context(), `EXPLAIN EXECUTE q `+args, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `DEALLOCATE q`)
	require.NoError(t, err)
	return strings.Join(lines, "\n")
}
