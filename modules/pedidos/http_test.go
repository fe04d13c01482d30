package pedidos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOrderIsStoredWithItsHistoryAndItsEvent(t *testing.T) {
	t.Parallel()
	r := start(t)
	a := r.send(t, "POST", "/pedidos", body)
	require.Equal(t, http.StatusCreated, a.Code, a.Text)
	require.Equal(t, "/pedidos/P-2026-000123", a.Header.Get("Location"))
	require.Equal(t, "creado", a.Estado)
	require.EqualValues(t, 3110, a.Total)
	require.NotContains(t, a.Text, "tok_ana")
	require.Contains(t, a.Text, `"tarjeta":"****0001"`)

	var evento struct {
		Agregado, Clave, Tipo, Topico, Carga string
		Version                              int
	}
	require.NoError(t, r.pool.QueryRow(t.Context(), `SELECT agregado, agregado_id, tipo, topico, version, carga::text FROM outbox`).
		Scan(&evento.Agregado, &evento.Clave, &evento.Tipo, &evento.Topico, &evento.Version, &evento.Carga))
	require.JSONEq(t, body, evento.Carga, "the lesson's data, nothing more")
	require.Equal(t, 2, evento.Version)
	require.Equal(t, "pedido P-2026-000123 pedido.creado pedidos.eventos",
		strings.Join([]string{evento.Agregado, evento.Clave, evento.Tipo, evento.Topico}, " "))

	got := r.send(t, "GET", "/pedidos/P-2026-000123", "")
	require.JSONEq(t, a.Text, got.Text, "the same order, read back")
	require.Equal(t, []cambio{{Estado: "creado"}}, got.Historial)
}

func TestOrderWithoutAddressIsVersionOneOfItsEvent(t *testing.T) {
	t.Parallel()
	r := start(t)
	plain := with(`,"direccion_entrega":{"ciudad":"Girona","codigo_postal":"17001"}`, "")
	require.Equal(t, http.StatusCreated, r.send(t, "POST", "/pedidos", plain).Code)
	require.Equal(t, 1, r.number(t, `version FROM outbox`))
	require.Equal(t, 0, r.number(t, `count(*) FROM outbox WHERE carga ? 'direccion_entrega'`))
}

// C06, and what a client may rely on when it repeats.
func TestRepeatReturnsTheFirstOrderAndOtherContentIsAConflict(t *testing.T) {
	t.Parallel()
	noID := with(`"id":"P-2026-000123",`, "")
	for name, c := range map[string]struct {
		first, firstKey, second, secondKey string
		status                             int
	}{
		"same id":                          {body, "", body, "", 200},
		"same id, other content":           {body, "", with(`"cantidad":2`, `"cantidad":3`), "", 409},
		"same id, other card":              {body, "", with(`tok_ana_0001`, `tok_eva_0001`), "", 409},
		"same id, other address":           {body, "", with(`"17001"`, `"17002"`), "", 409},
		"same id, lines swapped":           {body, "", with(`queso-curado","cantidad":2,"precio_centimos":1450},{"producto":"calabacin","cantidad":1,"precio_centimos":210`, `calabacin","cantidad":1,"precio_centimos":210},{"producto":"queso-curado","cantidad":2,"precio_centimos":1450`), "", 409},
		"same key, id left to us":          {noID, "K", noID, "K", 200},
		"same key, other content":          {noID, "K", strings.Replace(noID, `"cantidad":2`, `"cantidad":3`, 1), "K", 409},
		"same key, other id":               {body, "K", with(`000123`, `000124`), "K", 409},
		"same id, another key":             {body, "K", body, "L", 200},
		"same id, no key any more":         {body, "K", body, "", 200},
		"another key, id left to us":       {noID, "K", noID, "L", 201},
		"no key, id left to us":            {noID, "", noID, "", 201},
		"keys differ in case":              {noID, "K", noID, "k", 201},
		"written in another way":           {body, "", " \n" + with(`"cliente":"ana",`, "", `"tarjeta":`, "\"cliente\" :\t\"\\u0061na\",\"tarjeta\":"), "", 200},
		"composed and decomposed the same": {with(`"ana"`, `"caf\u00e9 <&>"`), "", with(`"ana"`, `"cafe\u0301 \u003c&>"`), "", 200},
		"address left out and null":        {with(`{"ciudad":"Girona","codigo_postal":"17001"}`, "null"), "", with(`,"direccion_entrega":{"ciudad":"Girona","codigo_postal":"17001"}`, ""), "", 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t)
			first := r.send(t, "POST", "/pedidos", c.first, "Idempotency-Key", c.firstKey)
			require.Equal(t, http.StatusCreated, first.Code, first.Text)
			second := r.send(t, "POST", "/pedidos", c.second, "Idempotency-Key", c.secondKey)
			require.Equal(t, c.status, second.Code, second.Text)
			orders := 1
			switch c.status {
			case http.StatusOK:
				require.JSONEq(t, first.Text, second.Text)
				require.Equal(t, first.Header.Get("Location"), second.Header.Get("Location"))
			case http.StatusConflict:
				require.Contains(t, second.Detail, "content differs")
				require.JSONEq(t, first.Text, r.send(t, "GET", "/pedidos/"+first.ID, "").Text, "unchanged")
			case http.StatusCreated:
				orders = 2
			}
			require.Equal(t, orders, r.number(t, `count(*) FROM pedidos`))
			require.Equal(t, orders, r.number(t, `count(*) FROM outbox`))
		})
	}
}

func TestIDOfOneOrderWithTheKeyOfAnotherIsAConflict(t *testing.T) {
	t.Parallel()
	r := start(t)
	require.Equal(t, 201, r.send(t, "POST", "/pedidos", body, "Idempotency-Key", "K").Code)
	require.Equal(t, 201, r.send(t, "POST", "/pedidos", with("000123", "000124"), "Idempotency-Key", "L").Code)
	require.Equal(t, 409, r.send(t, "POST", "/pedidos", body, "Idempotency-Key", "L").Code)
}

// C02, C04, C08 and C83 at the edge. Each limit is met from both sides.
func TestEveryLimitIsRefusedWithItsFieldAndMetByItsNeighbour(t *testing.T) {
	t.Parallel()
	r := start(t)
	lines := func(n int) string {
		return `[` + strings.TrimSuffix(strings.Repeat(`{"producto":"a","cantidad":1,"precio_centimos":1},`, n), ",") + `]`
	}
	const bothLines = `[{"producto":"queso-curado","cantidad":2,"precio_centimos":1450},{"producto":"calabacin","cantidad":1,"precio_centimos":210}]`
	dear := func(n int, rest string) string {
		return `[` + strings.Repeat(`{"producto":"a","cantidad":10000,"precio_centimos":10000000},`, n) + rest + `]`
	}
	for i, c := range []struct {
		field, old, bad, good string
	}{
		{"id", "P-2026-000123", strings.Repeat("x", 65), strings.Repeat("x", 64)},
		{"id", "P-2026-000123", strings.Repeat("x", 10_000), "ped-1"},
		{"id", "P-2026-000123", "ped-1 ", "PED-1"},
		{"id", "P-2026-000123", "", "p"},
		{"id", "P-2026-000123", "-x", "x-"},
		{"id", "P-2026-000123", "../x", "..x"[2:] + "..y"},
		{"id", "P-2026-000123", "a/b", "a_b"},
		{"id", "P-2026-000123", "cafe\u0301", "cafe"},
		{"id", "P-2026-000123", "café", "caf"},
		{"id", "P-2026-000123", "a\u200db", "ab"},
		{"id", "P-2026-000123", "🍅", "tomate"},
		{"cliente", `"ana"`, `""`, `"a"`},
		{"cliente", `"ana"`, `"` + strings.Repeat("ñ", 101) + `"`, `"` + strings.Repeat("ñ", 100) + `"`},
		{"cliente", `"ana"`, `"` + strings.Repeat("\u0958", 51) + `"`, `"` + strings.Repeat("\u0958", 50) + `"`}, // NFC makes two of one
		{"cliente", `"ana"`, `"a\u0000"`, `"<img src=x onerror=alert(1)>"`},
		{"cliente", `"ana"`, `"a\nb"`, `"{{7*7}}"`},
		{"mercado", `"girona"`, `"` + strings.Repeat("ñ", 61) + `"`, `"` + strings.Repeat("ñ", 60) + `"`},
		{"mercado", `"girona"`, `"\u009f"`, `"\u00a0"`},
		{"tarjeta", "tok_ana_0001", strings.Repeat("a", 65), strings.Repeat("a", 64)},
		{"tarjeta", "tok_ana_0001", "tok ana", "tok-ana"},
		{"tarjeta", "tok_ana_0001", "4111111111111111", "4111111111111112"},
		{"tarjeta", "tok_ana_0001", "4111-1111-1111-1111", "4111-1111-1111-1112"},
		{"tarjeta", "tok_ana_0001", "4111_1111_1111_1111", "tok_4111111111111111"},
		{"lineas", bothLines, `[]`, lines(1)},
		{"lineas", bothLines, lines(101), lines(100)},
		{"lineas", bothLines, `null`, lines(2)},
		{"lineas", bothLines, dear(10, `{"producto":"a","cantidad":1,"precio_centimos":1}`), strings.TrimSuffix(dear(10, ""), ",]") + "]"},
		{"lineas[0].producto", "queso-curado", "queso curado", "queso.curado"},
		{"lineas[0].producto", "queso-curado", strings.Repeat("x", 65), strings.Repeat("x", 64)},
		{"lineas[0].cantidad", `"cantidad":2`, `"cantidad":0`, `"cantidad":1`},
		{"lineas[0].cantidad", `"cantidad":2`, `"cantidad":-5`, `"cantidad":5`},
		{"lineas[1].cantidad", `"cantidad":1`, `"cantidad":-1`, `"cantidad":3`},
		{"lineas[0].cantidad", `"cantidad":2`, `"cantidad":10001`, `"cantidad":10000`},
		{"lineas[0].cantidad", `"cantidad":2`, `"cantidad":1.5`, `"cantidad":4`},
		{"lineas[0].cantidad", `"cantidad":2`, `"cantidad":1.0`, `"cantidad":6`},
		{"lineas[0].cantidad", `"cantidad":2`, `"cantidad":1e2`, `"cantidad":100`},
		{"lineas[0].cantidad", `"cantidad":2`, `"cantidad":2147483647`, `"cantidad":7`},
		{"lineas[0].cantidad", `"cantidad":2`, `"cantidad":9223372036854775807`, `"cantidad":8`},
		{"lineas[0].cantidad", `"cantidad":2`, `"cantidad":"2"`, `"cantidad":9`},
		{"lineas[0].cantidad", `"cantidad":2`, `"cantidad":2,"cantidad":2`, `"cantidad":11`},
		{"lineas[0].precio_centimos", `"precio_centimos":1450`, `"precio_centimos":0`, `"precio_centimos":1`},
		{"lineas[0].precio_centimos", `"precio_centimos":1450`, `"precio_centimos":10000001`, `"precio_centimos":10000000`},
		{"lineas[0].precio_centimos", `"precio_centimos":1450`, `"precio_centimos":9007199254740993`, `"precio_centimos":2`},
		{"lineas[0].precio_centimos", `"precio_centimos":1450`, `"precio_centimos":4611686018427387904`, `"precio_centimos":3`},
		{"lineas[0].precio_centimos", `"precio_centimos":1450`, `"precio_centimos":123456789012345678901234567890`, `"precio_centimos":4`},
		{"direccion_entrega.ciudad", `"Girona"`, `"` + strings.Repeat("x", 101) + `"`, `"` + strings.Repeat("x", 100) + `"`},
		{"direccion_entrega.ciudad", `"Girona"`, `"\t"`, `"L'Hospitalet"`},
		{"direccion_entrega.codigo_postal", `"17001"`, `"12345678901"`, `"1234567890"`},
		{"direccion_entrega.codigo_postal", `"17001"`, `"17_001"`, `"SW1A 1AA"`},
		{"estado", `"cliente":"ana"`, `"cliente":"ana","estado":"pagado"`, `"cliente":"eva"`},
	} {
		t.Run(fmt.Sprintf("%d %s", i, c.field), func(t *testing.T) {
			before := r.number(t, `count(*) FROM pedidos`)
			bad := r.send(t, "POST", "/pedidos", with(c.old, c.bad))
			require.Equal(t, http.StatusBadRequest, bad.Code, bad.Text)
			require.Len(t, bad.Errors, 1, bad.Text)
			require.Equal(t, "body."+c.field, bad.Errors[0].Location, bad.Text)
			if c.field == "tarjeta" {
				require.NotContains(t, bad.Text, c.bad)
			}
			require.Equal(t, before, r.number(t, `count(*) FROM pedidos`))

			good := with(c.old, c.good)
			if c.field != "id" {
				good = strings.Replace(good, "P-2026-000123", fmt.Sprintf("limit-%d", i), 1)
			}
			a := r.send(t, "POST", "/pedidos", good)
			require.Equal(t, http.StatusCreated, a.Code, a.Text)
			require.Positive(t, a.Total)
			require.Equal(t, http.StatusOK, r.send(t, "POST", "/pedidos", good).Code)
		})
	}
	require.Zero(t, r.number(t, `count(*) FROM pedidos WHERE total_centimos <= 0`))
}

// C08: the documented rule decides what is the same.
func TestIDsThatDifferInCaseAreDifferentOrders(t *testing.T) {
	t.Parallel()
	r := start(t)
	require.Equal(t, 201, r.send(t, "POST", "/pedidos", with("P-2026-000123", "ped-1")).Code)
	require.Equal(t, 201, r.send(t, "POST", "/pedidos", with("P-2026-000123", "PED-1")).Code)
	require.Equal(t, "PED-1", r.send(t, "GET", "/pedidos/PED-1", "").ID)
	require.Equal(t, "ped-1", r.send(t, "GET", "/pedidos/ped-1", "").ID)
}

func TestNoAddressMakesAServerError(t *testing.T) {
	t.Parallel()
	r := start(t)
	for _, id := range []string{"nada", "%00", "%ff", "a%2Fb", "..%2Fx", "%F0%9F%8D%85", "ped-1%20", strings.Repeat("x", 5000), "'%3B--"} {
		for _, request := range []struct{ method, path string }{{"GET", "/pedidos/" + id}, {"POST", "/pedidos/" + id + "/cancelacion"}} {
			a := r.send(t, request.method, request.path, "")
			require.Contains(t, []int{400, 404}, a.Code, "%s: %s", request.path, a.Text)
		}
	}
	require.Equal(t, 404, r.send(t, "GET", "/pedidos/nada", "").Code)
	require.Equal(t, 404, r.send(t, "POST", "/pedidos/nada/cancelacion", "").Code)
	for _, query := range []string{
		"cliente=%00", "cliente=%ff", "cliente=" + strings.Repeat("x", 101), "estado=roto", "limit=0", "limit=201", "limit=-1", "limit=1e1",
		"limit=99999999999999999999", "cursor=x", "cursor=" + strings.Repeat("A", 301),
		"cursor=" + encoded(`{"c":"2026-01-01T00:00:00Z","i":"a\u0000"}`), "cursor=" + encoded(`{"c":"0001-01-01T00:00:00Z","i":"a"}`), "cursor=" + encoded(`[]`),
	} {
		a := r.send(t, "GET", "/pedidos?"+query, "")
		require.Equal(t, 400, a.Code, "%s: %s", query, a.Text)
	}
	require.Equal(t, 200, r.send(t, "GET", "/pedidos?cursor="+encoded(`{"c":"9999-12-31T23:59:59Z","i":"a"}`), "").Code)
	for _, key := range []string{strings.Repeat("k", 201), "con espacio", "ñ"} {
		require.Equal(t, 400, r.send(t, "POST", "/pedidos", body, "Idempotency-Key", key).Code, key)
	}
	require.Equal(t, 201, r.send(t, "POST", "/pedidos", body, "Idempotency-Key", strings.Repeat("~", 200)).Code)
}

func TestCancellationByTheClientHappensOnce(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.send(t, "POST", "/pedidos", body)
	for _, own := range []string{"sin_stock", "tarjeta_rechazada", "Con Espacio"} {
		a := r.send(t, "POST", "/pedidos/P-2026-000123/cancelacion", `{"motivo":"`+own+`"}`)
		require.Equal(t, 400, a.Code, a.Text)
		require.Equal(t, "body.motivo", a.Errors[0].Location)
	}
	for range 2 {
		a := r.send(t, "POST", "/pedidos/P-2026-000123/cancelacion", "")
		require.Equal(t, 200, a.Code, a.Text)
		require.Equal(t, "cancelado", a.Estado)
		require.Equal(t, "cliente", a.Motivo)
		require.Equal(t, []cambio{{Estado: "creado"}, {"cancelado", "cliente"}}, a.Historial)
	}
	a := r.send(t, "POST", "/pedidos/P-2026-000123/cancelacion", `{"motivo":"cambio_de_idea"}`)
	require.Equal(t, "cliente", a.Motivo, "the first reason stays")
	require.Equal(t, []string{`{"id": "P-2026-000123", "motivo": "cliente"}`},
		r.texts(t, `SELECT carga::text FROM outbox WHERE tipo = 'pedido.cancelado'`))
	require.Equal(t, 200, r.send(t, "POST", "/pedidos", body).Code, "the repeat of a cancelled order is a repeat")
}

func TestPagesHaveEveryOrderOnceNewestFirst(t *testing.T) {
	t.Parallel()
	r := start(t)
	const n = 25
	for i := range n {
		cliente := `"ana"`
		if i%5 == 0 {
			cliente = `"caf\u00e9"`
		}
		require.Equal(t, 201, r.send(t, "POST", "/pedidos", with("P-2026-000123", fmt.Sprintf("P-%02d", i), `"ana"`, cliente)).Code)
	}
	// Many in the same microsecond: the id decides.
	_, err := r.pool.Exec(t.Context(), `UPDATE pedidos SET creado_en = date_trunc('hour', creado_en) WHERE id < 'P-20'`)
	require.NoError(t, err)
	want := r.texts(t, `SELECT id FROM pedidos ORDER BY creado_en DESC, id DESC`)
	for _, limit := range []int{1, 7, n - 1, n, n + 1} {
		var got []string
		for cursor, pages := "", 0; ; pages++ {
			require.LessOrEqual(t, pages, n)
			a := r.send(t, "GET", fmt.Sprintf("/pedidos?limit=%d&cursor=%s", limit, cursor), "")
			require.Equal(t, 200, a.Code, a.Text)
			require.LessOrEqual(t, len(a.Pedidos), limit)
			for _, p := range a.Pedidos {
				got = append(got, p.ID)
			}
			if cursor = a.Cursor; cursor == "" {
				break
			}
		}
		require.Equal(t, want, got, "limit %d", limit)
	}
	r.send(t, "POST", "/pedidos/P-03/cancelacion", "")
	require.Len(t, r.send(t, "GET", "/pedidos?cliente="+url.QueryEscape("cafe\u0301"), "").Pedidos, 5, "in any Unicode form")
	require.Len(t, r.send(t, "GET", "/pedidos?estado=cancelado", "").Pedidos, 1)
	require.Len(t, r.send(t, "GET", "/pedidos?estado=cancelado&cliente=ana", "").Pedidos, 1)
	require.Contains(t, r.send(t, "GET", "/pedidos?cliente=nadie", "").Text, `"pedidos":[]`)
	require.NotContains(t, r.send(t, "GET", "/pedidos", "").Text, "tok_")
}

func TestTooSlowADatabaseIs503AndTheOrderCanBeRepeated(t *testing.T) {
	t.Parallel()
	r := start(t)
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `LOCK TABLE pedidos`)
	require.NoError(t, err)
	for _, request := range []struct{ method, path, body string }{
		{"POST", "/pedidos", body}, {"GET", "/pedidos/P-1", ""}, {"GET", "/pedidos", ""}, {"POST", "/pedidos/P-1/cancelacion", ""},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		a := r.sendIn(ctx, t, request.method, request.path, request.body)
		cancel()
		require.Equal(t, http.StatusServiceUnavailable, a.Code, a.Text)
		require.Equal(t, "1", a.Header.Get("Retry-After"))
	}
	require.NoError(t, tx.Rollback(t.Context()))
	require.Contains(t, []int{200, 201}, r.send(t, "POST", "/pedidos", body).Code)
	require.Equal(t, 1, r.number(t, `count(*) FROM outbox`))
}

func TestDescriptionStatesTheLimits(t *testing.T) {
	t.Parallel()
	r := start(t)
	var doc struct {
		Paths map[string]map[string]struct {
			Responses map[string]json.RawMessage `json:"responses"`
		} `json:"paths"`
		Components struct {
			Schemas map[string]struct {
				Properties map[string]map[string]any `json:"properties"`
			} `json:"schemas"`
		} `json:"components"`
	}
	a := r.send(t, "GET", "/openapi.json", "")
	require.NoError(t, json.Unmarshal([]byte(a.Text), &doc))
	for _, status := range []string{"200", "201", "400", "409", "413", "415", "503"} {
		require.Contains(t, doc.Paths["/pedidos"]["post"].Responses, status)
	}
	pedido, linea, direccion := doc.Components.Schemas["Pedido"].Properties, doc.Components.Schemas["Linea"].Properties, doc.Components.Schemas["Direccion"].Properties
	for field, limit := range map[*map[string]any]string{
		ref(pedido["id"]): "pattern", ref(pedido["cliente"]): "maxLength", ref(pedido["mercado"]): "maxLength", ref(pedido["tarjeta"]): "pattern",
		ref(pedido["lineas"]): "maxItems", ref(linea["producto"]): "pattern", ref(linea["cantidad"]): "maximum",
		ref(linea["precio_centimos"]): "maximum", ref(direccion["ciudad"]): "maxLength", ref(direccion["codigo_postal"]): "pattern",
	} {
		require.Contains(t, *field, limit)
	}
}

func ref(m map[string]any) *map[string]any { return &m }
