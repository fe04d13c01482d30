package keyed_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkReader hands out and settles a backlog of 100,000 rows of 2,000
// keys: what reading costs without a bus behind it.
func BenchmarkReader(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		q := newQueue(b)
		_, err := q.pool.Exec(b.Context(), `INSERT INTO cola (clave, n, carril)
			SELECT k, n, l FROM generate_series(1, 50) n, unnest($1::text[], $2::int2[]) u(k, l)`, names(2000), lanes(2000))
		require.NoError(b, err)
		_, err = q.pool.Exec(b.Context(), `CREATE INDEX ON cola (posicion) WHERE NOT hecho; CREATE INDEX ON cola (clave) WHERE motivo IS NOT NULL`)
		require.NoError(b, err)
		b.StartTimer()
		start := time.Now()
		p := q.start(b, 256)
		for range 2000 * 50 {
			(<-p.out).Ack()
		}
		b.ReportMetric(2000*50/time.Since(start).Seconds(), "rows/s")
		p.stop()
	}
}
