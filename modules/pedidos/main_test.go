package pedidos_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"km0/migrations"
	"km0/modules/pedidos"
	"km0/modules/pedidos/contract"
	"km0/platform/consumer"
	"km0/platform/envelope"
	"km0/platform/outbox"
	"km0/platform/problem"
	"km0/platform/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// rig is the module on a database of its own, with its API. Events go straight
// to its handlers, without the inbox: what they promise holds even for an event
// whose record was purged.
type rig struct {
	pool     *pgxpool.Pool
	module   *pedidos.Module
	api      http.Handler
	handlers map[string]consumer.Handler // by type of event
}

func start(t testing.TB) *rig {
	t.Helper()
	return on(t, testbed.ModuleDatabase(t, "pedidos", migrations.Pedidos()))
}

func on(t testing.TB, pool *pgxpool.Pool) *rig {
	t.Helper()
	r := &rig{pool: pool, handlers: map[string]consumer.Handler{}}
	r.module = pedidos.New(pedidos.Deps{DB: pool, Outbox: outbox.New(outbox.Config{Pool: pool, Origen: "pedidos"})})
	for _, c := range r.module.Consumers() {
		for tipo, h := range c.Handlers {
			require.NotContains(t, r.handlers, tipo)
			r.handlers[tipo] = h
		}
	}
	mux := http.NewServeMux()
	r.module.Routes(problem.NewAPI(mux, "km0", "prueba"))
	r.api = mux
	return r
}

// deliver runs the handler of an event in a transaction, as the platform does.
// If the process is killed, it is not committed.
func (r *rig) deliver(ctx context.Context, tipo string, datos any, killed bool) error {
	raw, err := json.Marshal(datos)
	if err != nil {
		return err
	}
	tx, err := r.pool.Begin(ctx)
	if err != nil {
		return err
	}
	err = r.handlers[tipo](ctx, tx, envelope.Event{ID: outbox.NewID(), Tipo: tipo, Version: 1, Datos: raw})
	if err != nil || killed {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx)
}

func (r *rig) number(t require.TestingT, query string, args ...any) (n int) {
	require.NoError(t, r.pool.QueryRow(context.Background(), `SELECT `+query, args...).Scan(&n))
	return n
}

func (r *rig) texts(t require.TestingT, query string, args ...any) []string {
	rows, err := r.pool.Query(context.Background(), query, args...)
	require.NoError(t, err)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return list
}

// answer is what the API says: an order, a page of them, or a problem.
type answer struct {
	Code   int
	Header http.Header
	Text   string

	ID        string   `json:"id"`
	Estado    string   `json:"estado"`
	Motivo    string   `json:"motivo"`
	Total     int64    `json:"total_centimos"`
	Historial []cambio `json:"historial"`
	Pedidos   []struct {
		ID string `json:"id"`
	} `json:"pedidos"`
	Cursor string `json:"cursor"`
	Detail string `json:"detail"`
	Errors []struct {
		Location string `json:"location"`
		Message  string `json:"message"`
	} `json:"errors"`
}

type cambio struct {
	Estado string `json:"estado"`
	Motivo string `json:"motivo"`
}

func (r *rig) send(t require.TestingT, method, path, body string, header ...string) (a answer) {
	return r.sendIn(context.Background(), t, method, path, body, header...)
}

func (r *rig) sendIn(ctx context.Context, t require.TestingT, method, path, body string, header ...string) (a answer) {
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	req := httptest.NewRequestWithContext(ctx, method, path, reader)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	r.api.ServeHTTP(w, req)
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a), w.Body.String())
	a.Code, a.Header, a.Text = w.Code, w.Header(), w.Body.String()
	if a.Code >= 400 {
		require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	}
	return a
}

// body is the lesson's order.
const body = `{"id":"P-2026-000123","cliente":"ana","mercado":"girona","tarjeta":"tok_ana_0001",` +
	`"lineas":[{"producto":"queso-curado","cantidad":2,"precio_centimos":1450},{"producto":"calabacin","cantidad":1,"precio_centimos":210}],` +
	`"direccion_entrega":{"ciudad":"Girona","codigo_postal":"17001"}}`

// with is body with each old text, which must be there once, changed to a new one.
func with(oldnew ...string) string {
	changed := body
	for i := 0; i < len(oldnew); i += 2 {
		if strings.Count(changed, oldnew[i]) != 1 {
			panic(oldnew[i])
		}
		changed = strings.Replace(changed, oldnew[i], oldnew[i+1], 1)
	}
	return changed
}

// encoded is a text as a cursor.
func encoded(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

func encode(t require.TestingT, p contract.Pedido) string {
	encoded, err := json.Marshal(p)
	require.NoError(t, err)
	return string(encoded)
}

func decode(t require.TestingT, datos []byte) (p contract.Pedido) {
	require.NoError(t, json.Unmarshal(datos, &p))
	return p
}
