package pedidos_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"km0/migrations"
	"km0/modules/pedidos"
	"km0/modules/pedidos/contract"
	"km0/platform/testbed"
)

func TestFiftyParallelRequestsForOneOrderMakeOne(t *testing.T) {
	t.Parallel()
	r := start(t)
	for name, c := range map[string]struct{ body, key string }{
		"by id":  {body, ""},
		"by key": {with(`"id":"P-2026-000123",`, ""), "K"},
	} {
		answers := make([]answer, 50)
		var sending sync.WaitGroup
		for i := range answers {
			sending.Go(func() { answers[i] = r.send(t, "POST", "/pedidos", c.body, "Idempotency-Key", c.key) })
		}
		sending.Wait()
		status := map[int]int{}
		for _, a := range answers {
			status[a.Code]++
			require.Equal(t, answers[0].ID, a.ID)
		}
		require.Equal(t, map[int]int{http.StatusCreated: 1, http.StatusOK: 49}, status, name)
		require.Equal(t, 1, r.number(t, `count(*) FROM outbox WHERE agregado_id = $1`, answers[0].ID))
	}
}

// C11: the connection breaks around the COMMIT of an order, at any byte.
func TestConnectionLostAroundTheCommitOfAnOrder(t *testing.T) {
	t.Parallel()
	dsn := testbed.Postgres(t).Database(t, testbed.Plataforma(), testbed.Set{Name: "pedidos", Files: migrations.Pedidos()})
	p := newProxy(t, dsn)
	r, direct := on(t, testbed.Pool(t, p.dsn)), on(t, testbed.Pool(t, dsn))
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	lost, committed := 0, 0
	for i := range 50 {
		id := fmt.Sprintf("C11-%d", i)
		request := with("P-2026-000123", id)
		cut := random.IntN(1200) // the request to the database has some 900 bytes
		if i%2 == 0 {
			cut = 1 << 20 // all of it arrives, and the answer is lost
		}
		p.arm(id, cut)
		first := r.send(t, "POST", "/pedidos", request)
		require.Contains(t, []int{http.StatusCreated, http.StatusServiceUnavailable}, first.Code, first.Text)
		if first.Code == http.StatusServiceUnavailable {
			lost++
			require.Equal(t, "1", first.Header.Get("Retry-After"))
		}
		committed += direct.number(t, `count(*) FROM pedidos WHERE id = $1`, id)
		p.arm("", 0)
		var second answer
		testbed.Eventually(t, 10*time.Second, func() bool { // broken connections of the pool are noticed one by one
			second = r.send(t, "POST", "/pedidos", request)
			return second.Code != http.StatusServiceUnavailable
		}, "the repeat of %s", id)
		require.Contains(t, []int{http.StatusOK, http.StatusCreated}, second.Code, second.Text)
		require.Equal(t, id, second.ID)
		require.Equal(t, 1, direct.number(t, `count(*) FROM outbox WHERE agregado_id = $1`, id))
		require.Equal(t, 2, direct.number(t, `count(*) FROM lineas_pedido WHERE pedido_id = $1`, id))
		require.Equal(t, 1, direct.number(t, `count(*) FROM historial_pedido WHERE pedido_id = $1`, id))
	}
	require.GreaterOrEqual(t, lost, 25, "connections were cut")
	require.GreaterOrEqual(t, committed, 25, "some after COMMIT")
	require.Equal(t, 50, direct.number(t, `count(*) FROM pedidos`))
}

// proxy stands between a pool and PostgreSQL. Armed with a text, it lets so
// many bytes of what the client sends pass, from the first message with this
// text on, and gives no answer to it.
type proxy struct {
	dsn string

	mu   sync.Mutex
	text string
	left int
}

func (p *proxy) arm(text string, left int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text, p.left = text, left
}

// due is how much of a message passes, and whether the connection is cut.
func (p *proxy) due(message []byte) (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.text == "" || !bytes.Contains(message, []byte(p.text)) {
		return len(message), false
	}
	p.text = ""
	return min(p.left, len(message)), true
}

func newProxy(t *testing.T, dsn string) *proxy {
	t.Helper()
	cfg, err := pgconn.ParseConfig(dsn)
	require.NoError(t, err)
	network, address := pgconn.NetworkAddress(cfg.Host, cfg.Port)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	host, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	p := &proxy{dsn: testbed.With(testbed.With(testbed.With(dsn, "host", host), "port", port), "sslmode", "disable")}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial(network, address)
			if err != nil {
				_ = client.Close()
				continue
			}
			running.Go(func() { p.pass(client, server) })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); running.Wait() }) // the pool was closed before
	return p
}

func (p *proxy) pass(client, server net.Conn) {
	var cut atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer client.Close()
		buffer := make([]byte, 64<<10)
		for {
			n, err := server.Read(buffer)
			if err != nil || cut.Load() {
				return
			}
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	}()
	buffer := make([]byte, 64<<10)
	for !cut.Load() {
		n, err := client.Read(buffer)
		if err != nil {
			break
		}
		pass, last := p.due(buffer[:n])
		cut.Store(last)
		if _, err := io.Copy(server, bytes.NewReader(buffer[:pass])); err != nil {
			break
		}
		if last && pass == n {
			<-ended // PostgreSQL has answered: what it committed, it committed
		}
	}
	_, _ = client.Close(), server.Close()
	<-ended
}

// TestAPIAndContractAgree: what the API takes is an event that consumers take.
func TestAPIAndContractAgree(t *testing.T) {
	t.Parallel()
	r := start(t)
	var n atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		text := func() *rapid.Generator[string] {
			return rapid.OneOf(rapid.StringN(0, 8, 40), rapid.StringN(95, 105, 400),
				rapid.Map(rapid.IntRange(1, 60), func(n int) string { return strings.Repeat("\u0958", n) })) // NFC makes two of one
		}
		p := contract.Pedido{
			ID: fmt.Sprintf("A-%d", n.Add(1)), Cliente: text().Draw(t, "cliente"), Mercado: rapid.StringN(1, 62, 200).Draw(t, "mercado"),
			Tarjeta: rapid.StringMatching(`[A-Za-z0-9_-]{1,66}|[45][0-9]{15}`).Draw(t, "tarjeta"),
		}
		for range rapid.IntRange(1, 3).Draw(t, "lines") {
			p.Lineas = append(p.Lineas, contract.Linea{
				Producto: rapid.StringMatching(`[a-z.-]{1,66}`).Draw(t, "producto"),
				Cantidad: int32(rapid.IntRange(-1, 10_001).Draw(t, "cantidad")), PrecioCentimos: int64(rapid.IntRange(-1, 10_000_001).Draw(t, "precio")),
			})
		}
		a := r.send(t, "POST", "/pedidos", encode(t, p))
		require.Contains(t, []int{201, 400}, a.Code, a.Text)
		if a.Code == 400 {
			require.Zero(t, r.number(t, `count(*) FROM outbox WHERE agregado_id = $1`, p.ID))
			return
		}
		var carga []byte
		require.NoError(t, r.pool.QueryRow(context.Background(), `SELECT carga FROM outbox WHERE agregado_id = $1`, p.ID).Scan(&carga))
		event := decode(t, carga)
		require.NoError(t, event.Validate())
		require.Equal(t, a.Total, event.Total())
		require.Equal(t, p.Lineas, event.Lineas)
	})
}

func TestListsWalkAnIndexOnALargeTable(t *testing.T) {
	t.Parallel()
	r := start(t)
	_, err := r.pool.Exec(t.Context(), `
		INSERT INTO pedidos (id, cliente, mercado, estado, tarjeta, total_centimos, huella, creado_en)
		SELECT 'P-' || n, 'cliente-' || n % 100, 'girona', 'pagado', 'tok', 1, '', now() - n * interval '1 second'
		FROM generate_series(1, 50000) n`)
	require.NoError(t, err)
	_, err = r.pool.Exec(t.Context(), `ANALYZE pedidos`)
	require.NoError(t, err)
	after := pedidos.Posicion{Creado: time.Now().Add(-10 * time.Hour), ID: "P-36000"}
	for name, c := range map[string]struct {
		filter pedidos.Filtro
		index  string
	}{
		"all":                        {pedidos.Filtro{}, "pedidos_recientes"},
		"all, next page":             {pedidos.Filtro{Antes: after}, "pedidos_recientes"},
		"one client":                 {pedidos.Filtro{Cliente: "cliente-7"}, "pedidos_por_cliente"},
		"one client, next page":      {pedidos.Filtro{Cliente: "cliente-7", Antes: after}, "pedidos_por_cliente"},
		"one client, in a state":     {pedidos.Filtro{Cliente: "cliente-7", Estado: pedidos.Pagado}, "pedidos_por_cliente"},
		"a client who never ordered": {pedidos.Filtro{Cliente: "nadie"}, "pedidos_por_cliente"},
	} {
		c.filter.Limite = 51
		query, args := c.filter.Query()
		rows, err := r.pool.Query(t.Context(), `EXPLAIN `+query, args...)
		require.NoError(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		plan := strings.Join(lines, "\n")
		require.Contains(t, plan, c.index, "%s:\n%s", name, plan)
		if name != "a client who never ordered" { // to sort nothing costs nothing
			require.NotContains(t, plan, "Sort", "%s:\n%s", name, plan)
		}
		require.NotContains(t, plan, "Seq Scan", "%s:\n%s", name, plan)
	}
}
