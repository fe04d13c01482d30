package pedidos_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"km0/migrations"
	"km0/modules/pedidos"
	"km0/platform/outbox"
	"km0/platform/problem"
	"km0/platform/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

func TestProbe(t *testing.T) {
	pool := testbed.ModuleDatabase(t, "pedidos", migrations.Pedidos())
	m := pedidos.New(pedidos.Deps{DB: pool, Outbox: outbox.New(outbox.Config{Pool: pool, Origen: "pedidos"})})
	mux := http.NewServeMux()
	m.Routes(problem.NewAPI(mux, "x", "1"))
	do := func(method, path, body string, h ...string) {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		if body != "" { r.Header.Set("Content-Type", "application/json") }
		for i := 0; i < len(h); i += 2 { r.Header.Set(h[i], h[i+1]) }
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		b := w.Body.String()
		if len(b) > 300 { b = b[:300] }
		if len(body) > 200 { body = body[:200] }
		fmt.Printf("%s %s %q\n   -> %d %v %s\n", method, path, body, w.Code, w.Header(), strings.TrimSpace(b))
	}
	ok := `{"id":"P-1","cliente":"ana","mercado":"girona","tarjeta":"tok_ana","lineas":[{"producto":"tomate-rosa","cantidad":2,"precio_centimos":320}]}`
	do("POST", "/pedidos", ok)
	do("POST", "/pedidos", ok)
	do("POST", "/pedidos", strings.Replace(ok, `:2,`, `:1.0,`, 1))
	do("POST", "/pedidos", strings.Replace(ok, `:2,`, `:1e2,`, 1))
	do("POST", "/pedidos", strings.Replace(ok, `:2,`, `:9223372036854775807,`, 1))
	do("POST", "/pedidos", strings.Replace(ok, `:2,`, `:-5,`, 1))
	do("POST", "/pedidos", strings.Replace(ok, `:2,`, `:2,"cantidad":3,`, 1))
	do("POST", "/pedidos", strings.Replace(ok, `ana`, "a\xffna", 1))
	do("POST", "/pedidos", strings.Replace(ok, `ana`, `a\u0000na`, 1))
	do("POST", "/pedidos", strings.Replace(ok, `tok_ana`, `4111111111111111`, 1))
	do("POST", "/pedidos", strings.Replace(ok, `"tok_ana"`, `4111111111111111`, 1))
	do("POST", "/pedidos", ok+"x")
	do("POST", "/pedidos", strings.Repeat("[", 20000))
	do("POST", "/pedidos", strings.Repeat("[", 9000)+strings.Repeat("]", 9000))
	do("POST", "/pedidos", strings.Replace(ok, `ana`, strings.Repeat("x", 70000), 1))
	do("POST", "/pedidos", ok, "Content-Type", "text/xml")
	do("POST", "/pedidos", ok, "Content-Type", "application/json; charset=utf-8")
	do("POST", "/pedidos", "")
	do("POST", "/pedidos", "null")
	do("POST", "/pedidos", `{"id":""}`)
	do("POST", "/pedidos", strings.Replace(ok, `"P-1"`, `""`, 1))
	do("POST", "/pedidos", strings.Replace(ok, `"P-1"`, `null`, 1))
	do("POST", "/pedidos", strings.Replace(ok, `"lineas"`, `"direccion_entrega":null,"lineas"`, 1))
	do("GET", "/pedidos?cliente=%00", "")
	do("GET", "/pedidos?cliente=%ff", "")
	do("GET", "/pedidos?estado=x&limit=0", "")
	do("GET", "/pedidos?limit=abc", "")
	do("GET", "/pedidos?cursor=abc", "")
	do("GET", "/pedidos/%00", "")
	do("GET", "/pedidos/%ff", "")
	do("GET", "/pedidos/a%2Fb", "")
	do("GET", "/nada", "")
	do("DELETE", "/pedidos", "")
	do("HEAD", "/pedidos/P-1", "")
	do("OPTIONS", "/pedidos", "")
	do("POST", "/pedidos/P-1/cancelacion", "")
	do("POST", "/pedidos/P-1/cancelacion", "{}")
	do("POST", "/pedidos/P-1/cancelacion", "null")
	do("GET", "/pedidos/P-1", "")
	do("GET", "/pedidos", "")
	pool.Close()
	do("GET", "/pedidos/P-1", "")
	do("GET", "/openapi.json", "")
}
