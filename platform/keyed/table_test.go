package keyed_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/platform/keyed"
	"km0/platform/testbed"
)

// queue is the smallest table keyed can read.
type queue struct{ pool *pgxpool.Pool }

func newQueue(t testing.TB) queue {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testbed.Postgres(t).Database(t))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), `
		CREATE TABLE cola (posicion BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, clave TEXT NOT NULL, n INT NOT NULL,
			carril SMALLINT NOT NULL, hecho BOOLEAN NOT NULL DEFAULT false, motivo TEXT)`)
	require.NoError(t, err)
	return queue{pool}
}

func (q queue) add(t testing.TB, key string, n int) {
	t.Helper()
	_, err := q.pool.Exec(t.Context(), `INSERT INTO cola (clave, n, carril) VALUES ($1, $2, $3)`, key, n, keyed.Lane(key))
	require.NoError(t, err)
}

func (q queue) Fetch(ctx context.Context, f keyed.Query) ([]keyed.Row, error) {
	rows, err := q.pool.Query(ctx, `
		SELECT posicion, carril, clave, n FROM cola c
		WHERE NOT hecho AND motivo IS NULL AND posicion > $1 AND ($2::int2[] IS NULL OR carril = ANY ($2))
		  AND NOT clave = ANY (coalesce($3::text[], '{}')) AND NOT posicion = ANY (coalesce($5::bigint[], '{}'))
		  AND NOT EXISTS (SELECT 1 FROM cola a WHERE a.clave = c.clave AND a.posicion < c.posicion AND a.motivo IS NOT NULL AND NOT a.hecho)
		ORDER BY posicion LIMIT $4`, f.After, f.Lanes, f.Exclude, f.Limit, f.Skip)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r keyed.Row, err error) {
		var n int
		err = row.Scan(&r.Position, &r.Lane, &r.Key, &n)
		r.Message = message.NewMessage(fmt.Sprint(r.Key, "/", n), nil)
		return r, err
	})
}

func (q queue) Settle(ctx context.Context, positions []int64) error {
	_, err := q.pool.Exec(ctx, `UPDATE cola SET hecho = true WHERE posicion = ANY ($1)`, positions)
	return err
}

func (q queue) SetAside(ctx context.Context, position int64, reason string) error {
	_, err := q.pool.Exec(ctx, `UPDATE cola SET motivo = $2 WHERE posicion = $1`, position, reason)
	return err
}

func (q queue) pending(t testing.TB) (n int) {
	t.Helper()
	require.NoError(t, q.pool.QueryRow(t.Context(), `SELECT count(*) FROM cola WHERE NOT hecho`).Scan(&n))
	return n
}

// process is one reader with its own session, as another process would be.
type process struct {
	sub    *keyed.Subscriber
	out    <-chan *message.Message
	cancel context.CancelFunc
	done   chan struct{}
}

func (q queue) start(t testing.TB, concurrency int) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	claims := keyed.NewClaims(q.pool.Config().ConnConfig.Copy(), nil)
	p := &process{cancel: cancel, done: make(chan struct{})}
	go func() { _ = claims.Run(ctx); close(p.done) }()
	p.sub = keyed.NewSubscriber(keyed.Config{Group: "prueba", Table: q, Claims: claims, Concurrency: concurrency})
	out, err := p.sub.Subscribe(ctx, "")
	require.NoError(t, err)
	p.out = out
	t.Cleanup(p.stop)
	return p
}

func (p *process) stop() {
	_ = p.sub.Close()
	p.cancel()
	<-p.done
}

// recorder notes first deliveries and swaps.
type recorder struct {
	mu         sync.Mutex
	seen       map[string]int // highest n of a key
	deliveries atomic.Int64
	swaps      atomic.Int64
	inFlight   map[string]bool
	overlaps   atomic.Int64
}

func newRecorder() *recorder { return &recorder{seen: map[string]int{}, inFlight: map[string]bool{}} }

func (r *recorder) handle(m *message.Message, work func() bool) {
	r.deliveries.Add(1)
	var key string
	var n int
	key, n = split(m.UUID)
	r.mu.Lock()
	if n > r.seen[key]+1 {
		r.swaps.Add(1)
	}
	if r.inFlight[key] {
		r.overlaps.Add(1)
	}
	r.inFlight[key] = true
	r.mu.Unlock()
	ok := work()
	r.mu.Lock()
	r.inFlight[key] = false
	if ok && n > r.seen[key] {
		r.seen[key] = n
	}
	r.mu.Unlock()
	if ok {
		m.Ack()
	} else {
		m.Nack()
	}
}

func split(id string) (key string, n int) {
	for i := len(id) - 1; ; i-- {
		if id[i] == '/' {
			_, _ = fmt.Sscan(id[i+1:], &n)
			return id[:i], n
		}
	}
}
