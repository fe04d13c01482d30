package pagos_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pedidos "km0/modules/pedidos/contract"
	"km0/platform/problem"
)

func TestPaymentOverHTTP(t *testing.T) {
	t.Parallel()
	r := start(t)
	require.NoError(t, r.deliver(t.Context(), pedidos.PedidoCreado, order("P-1", "tok_ana_0001", 1450), fine))
	mux := http.NewServeMux()
	r.module.Routes(problem.NewAPI(mux, "km0", "prueba"))
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w
	}
	w := get("/pagos/P-1")
	require.Equal(t, 200, w.Code, w.Body)
	var pago struct {
		PedidoID string `json:"pedido_id"`
		Importe  int64  `json:"importe_centimos"`
		Estado   string `json:"estado"`
		Ref      string `json:"ref_pasarela"`
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &pago))
	require.Equal(t, "P-1", pago.PedidoID)
	require.EqualValues(t, 2900, pago.Importe)
	require.Equal(t, "cobrado", pago.Estado)
	require.Equal(t, r.entry(t, "P-1").Ref, pago.Ref)
	require.NotContains(t, w.Body.String(), "tok_ana")

	for path, status := range map[string]int{"/pagos/P-2": 404, "/pagos/p-1": 404, "/pagos/%00": 400, "/pagos/%ff": 400, "/pagos/" + strings.Repeat("x", 65): 400} {
		w := get(path)
		require.Equal(t, status, w.Code, path)
		require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	}
}
