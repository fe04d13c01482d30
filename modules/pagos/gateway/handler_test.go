package gateway_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"km0/modules/pagos/gateway"
)

const good = `{"pedido_id":"P-1","importe_centimos":1250,"tarjeta":"tok_ana"}`

func send(h http.Handler, method, target string, keys []string, body string) *http.Response {
	req := httptest.NewRequest(method, "/", strings.NewReader(body))
	if u, err := url.Parse(target); err == nil {
		req.URL = u
	}
	if keys != nil {
		req.Header["Idempotency-Key"] = keys
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w.Result()
}

func handler(t testing.TB) http.Handler {
	sim, err := gateway.OpenSimulator(filepath.Join(t.TempDir(), "gateway.db"), gateway.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sim.Close()) })
	return sim.Handler()
}

// isProblem checks that an error is problem details, and that success is not.
func isProblem(t *testing.T, res *http.Response) {
	t.Helper()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	if res.StatusCode < 400 {
		assert.NotEqual(t, "application/problem+json", res.Header.Get("Content-Type"))
		return
	}
	require.Equal(t, "application/problem+json", res.Header.Get("Content-Type"))
	var problem struct {
		Status        int
		Title, Detail string
	}
	require.NoError(t, json.Unmarshal(body, &problem))
	require.Equal(t, res.StatusCode, problem.Status)
	require.Equal(t, http.StatusText(res.StatusCode), problem.Title)
	require.NotEmpty(t, problem.Detail)
}

func TestStatusesOfTheAPI(t *testing.T) {
	t.Parallel()
	long := func(n int) string { return strings.Repeat("k", n) }
	with := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	for name, c := range map[string]struct {
		method, target string
		keys           []string
		body           string
		status         int
	}{
		"charge":                   {"POST", "/cobros", []string{"k"}, good, 201},
		"longest key":              {"POST", "/cobros", []string{long(200)}, good, 201},
		"largest body":             {"POST", "/cobros", []string{"k"}, good + strings.Repeat(" ", 64<<10-len(good)), 201},
		"declined":                 {"POST", "/cobros", []string{"k"}, with("tok_ana", "tok_rechazada"), 402},
		"no key":                   {"POST", "/cobros", nil, good, 400},
		"empty key":                {"POST", "/cobros", []string{""}, good, 400},
		"two keys":                 {"POST", "/cobros", []string{"k", "l"}, good, 400},
		"key too long":             {"POST", "/cobros", []string{long(201)}, good, 400},
		"key with a space":         {"POST", "/cobros", []string{"a b"}, good, 400},
		"key with a newline":       {"POST", "/cobros", []string{"a\n"}, good, 400},
		"key not ASCII":            {"POST", "/cobros", []string{"señal"}, good, 400},
		"body too large":           {"POST", "/cobros", []string{"k"}, good + strings.Repeat(" ", 64<<10), 413},
		"no body":                  {"POST", "/cobros", []string{"k"}, "", 400},
		"null":                     {"POST", "/cobros", []string{"k"}, "null", 400},
		"not an object":            {"POST", "/cobros", []string{"k"}, "[]", 400},
		"two objects":              {"POST", "/cobros", []string{"k"}, good + good, 400},
		"no order":                 {"POST", "/cobros", []string{"k"}, with("P-1", ""), 400},
		"order too long":           {"POST", "/cobros", []string{"k"}, with("P-1", long(201)), 400},
		"NUL in the order":         {"POST", "/cobros", []string{"k"}, with("P-1", `P\u0000`), 400},
		"no card":                  {"POST", "/cobros", []string{"k"}, with("tok_ana", ""), 400},
		"nothing to charge":        {"POST", "/cobros", []string{"k"}, with("1250", "0"), 400},
		"negative":                 {"POST", "/cobros", []string{"k"}, with("1250", "-1"), 400},
		"too much":                 {"POST", "/cobros", []string{"k"}, with("1250", "1000000000001"), 400},
		"beyond int64":             {"POST", "/cobros", []string{"k"}, with("1250", "9223372036854775808"), 400},
		"half a cent":              {"POST", "/cobros", []string{"k"}, with("1250", "1.5"), 400},
		"a text":                   {"POST", "/cobros", []string{"k"}, with("1250", `"1250"`), 400},
		"annulment":                {"POST", "/anulaciones", nil, `{"clave":"k"}`, 200},
		"annulment of no key":      {"POST", "/anulaciones", nil, `{}`, 400},
		"annulment of a long key":  {"POST", "/anulaciones", nil, `{"clave":"` + long(201) + `"}`, 400},
		"annulment body too large": {"POST", "/anulaciones", nil, strings.Repeat(" ", 64<<10+1), 413},
		"ledger":                   {"GET", "/libro", nil, "", 200},
		"ledger page":              {"GET", "/libro?desde=k&limite=500", nil, "", 200},
		"ledger page too large":    {"GET", "/libro?limite=501", nil, "", 400},
		"ledger page of nothing":   {"GET", "/libro?limite=0", nil, "", 400},
		"ledger page of text":      {"GET", "/libro?limite=x", nil, "", 400},
		"ledger after no key":      {"GET", "/libro?desde=a%20b", nil, "", 400},
		"totals":                   {"GET", "/libro/resumen", nil, "", 200},
		"health":                   {"GET", "/healthz", nil, "", 200},
		"other method":             {"GET", "/cobros", nil, "", 405},
		"other method of totals":   {"DELETE", "/libro/resumen", nil, "", 405},
		"other path":               {"GET", "/tarjetas", nil, "", 404},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res := send(handler(t), c.method, c.target, c.keys, c.body)
			require.Equal(t, c.status, res.StatusCode)
			if c.status == http.StatusMethodNotAllowed {
				require.NotEmpty(t, res.Header.Get("Allow"))
			}
			isProblem(t, res)
		})
	}
}

func TestTheFirstChargeIsCreatedAndItsRepetitionIsTheSameBody(t *testing.T) {
	t.Parallel()
	h := handler(t)
	var bodies [][]byte
	for _, status := range []int{201, 200, 200} {
		res := send(h, "POST", "/cobros", []string{"k"}, good)
		require.Equal(t, status, res.StatusCode)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		bodies = append(bodies, body)
	}
	require.Equal(t, bodies[0], bodies[1])
	require.Equal(t, bodies[0], bodies[2])
	require.Equal(t, 409, send(h, "POST", "/cobros", []string{"k"}, strings.Replace(good, "1250", "1251", 1)).StatusCode)
	require.Equal(t, 200, send(h, "POST", "/anulaciones", nil, `{"clave":"late"}`).StatusCode)
	require.Equal(t, 410, send(h, "POST", "/cobros", []string{"late"}, good).StatusCode)
}

func TestTheLedgerIsServedInPages(t *testing.T) {
	t.Parallel()
	h := handler(t)
	for i := range 5 {
		require.Equal(t, 201, send(h, "POST", "/cobros", []string{fmt.Sprintf("k%d", i)}, good).StatusCode)
	}
	for query, want := range map[string][]string{
		"":                   {"k0", "k1", "k2", "k3", "k4"},
		"?limite=2":          {"k0", "k1"},
		"?desde=k1&limite=2": {"k2", "k3"},
		"?desde=k2x":         {"k3", "k4"},
		"?desde=k4":          {},
	} {
		var list []gateway.Asiento
		require.NoError(t, json.NewDecoder(send(h, "GET", "/libro"+query, nil, "").Body).Decode(&list))
		keys := []string{}
		for _, a := range list {
			keys = append(keys, a.Clave)
		}
		require.Equal(t, want, keys, query)
	}
}

func FuzzNoInputIsAnInternalErrorOrAPanic(f *testing.F) {
	h := handler(f)
	f.Add("POST", "/cobros", "k", []byte(good))
	f.Add("POST", "/cobros", "k\x00", []byte(good))
	f.Add("POST", "/cobros", strings.Repeat("k", 201), []byte(`{"importe_centimos":1e400}`))
	f.Add("POST", "/anulaciones", "", []byte(`{"clave":"k"}`))
	f.Add("POST", "/anulaciones", "", bytes.Repeat([]byte("["), 20_000))
	f.Add("GET", "/libro?desde=%ff&limite=99999999999999999999", "", []byte{})
	f.Add("HEAD", "/libro/resumen", "", []byte{})
	f.Add("PUT", "//cobros/../libro", "k", []byte("{}"))
	f.Fuzz(func(t *testing.T, method, target, key string, body []byte) {
		if _, err := http.NewRequest(method, "http://gateway/", nil); err != nil || method == http.MethodConnect {
			t.Skip("net/http does not let it through")
		}
		u, err := url.ParseRequestURI(target)
		if err != nil || u.IsAbs() || !strings.HasPrefix(u.Path, "/") {
			t.Skip("net/http does not let it through")
		}
		res := send(h, method, target, []string{key}, string(body))
		require.Less(t, res.StatusCode, 500)
		isProblem(t, res)
	})
}
