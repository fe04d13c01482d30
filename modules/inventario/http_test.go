package inventario_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"km0/platform/problem"
)

func TestStockOverHTTP(t *testing.T) {
	t.Parallel()
	r := start(t)
	mux := http.NewServeMux()
	r.module.Routes(problem.NewAPI(mux, "km0", "prueba"))
	for path, want := range map[string]struct {
		status int
		body   string
	}{
		"/stock/tomate-rosa": {200, `{"producto":"tomate-rosa","unidades":120}`},
		"/stock": {200, `[{"producto":"calabacin","unidades":80},{"producto":"queso-curado","unidades":5},` +
			`{"producto":"queso-fresco","unidades":30},{"producto":"tomate-rosa","unidades":120},{"producto":"vino-crianza","unidades":200}]`},
		"/stock/unicornio":                  {404, ""},
		"/stock/TOMATE-ROSA":                {404, ""},
		"/stock/%00":                        {400, ""},
		"/stock/%ff":                        {400, ""},
		"/stock/" + strings.Repeat("x", 65): {400, ""},
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		require.Equal(t, want.status, w.Code, "%s: %s", path, w.Body)
		if want.status == 200 {
			require.JSONEq(t, want.body, w.Body.String())
		} else {
			require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
		}
	}
}
