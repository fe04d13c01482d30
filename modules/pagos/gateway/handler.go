package gateway

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"
)

const (
	maxBody    = 64 << 10
	maxImporte = 1_000_000_000_000
	maxPagina  = 500 // of the longest entries is still below maxAnswer
)

// Handler is the simulator's API. Errors are problem details.
//
//	POST /cobros         Idempotency-Key; {"pedido_id","importe_centimos","tarjeta"}
//	                     201 {"ref","importe_centimos"}, when repeated 200 with the same;
//	                     402 declined, 409 other content, 410 annulled before, 503 fault
//	POST /anulaciones    {"clave"}; 200 {"ref","importe_centimos"}; 503 fault
//	GET /libro           ?desde=<key, not included>&limite=<1 to 500>; 200 [entry, ...]
//	GET /libro/resumen   200 totals
//	GET /healthz         200
func (s *Simulator) Handler() http.Handler {
	mux := http.NewServeMux()
	for path, route := range map[string]struct {
		method string
		handle http.HandlerFunc
	}{
		"/cobros":        {http.MethodPost, s.postCobro},
		"/anulaciones":   {http.MethodPost, s.postAnulacion},
		"/libro":         {http.MethodGet, s.getLibro},
		"/libro/resumen": {http.MethodGet, s.getResumen},
		"/healthz":       {http.MethodGet, getHealth},
	} {
		mux.HandleFunc(route.method+" "+path, route.handle)
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Allow", route.method)
			fail(w, http.StatusMethodNotAllowed, path+" takes "+route.method)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusNotFound, "there are /cobros, /anulaciones, /libro, /libro/resumen and /healthz")
	})
	return mux
}

func (s *Simulator) postCobro(w http.ResponseWriter, r *http.Request) {
	c := Cobro{Clave: r.Header.Get("Idempotency-Key")}
	switch {
	case len(r.Header.Values("Idempotency-Key")) != 1 || !visible.MatchString(c.Clave):
		fail(w, http.StatusBadRequest, "one header Idempotency-Key must have 1 to 200 visible ASCII characters")
		return
	case !decode(w, r, &c):
		return
	case !visible.MatchString(c.PedidoID) || !visible.MatchString(c.Tarjeta):
		fail(w, http.StatusBadRequest, "pedido_id and tarjeta must have 1 to 200 visible ASCII characters")
		return
	case c.ImporteCentimos < 1 || c.ImporteCentimos > maxImporte:
		fail(w, http.StatusBadRequest, "importe_centimos must be from 1 to 1000000000000")
		return
	}
	if !s.pass(w, r, s.refuses(c.Clave)) {
		return
	}
	a, err := s.cobrar(c)
	if s.hangs(a) { // the ledger has it; the answer comes too late
		wait(r, s.opts.HangFor)
	}
	switch {
	case errors.Is(err, ErrClaveReutilizada):
		fail(w, http.StatusConflict, ErrClaveReutilizada.Error())
	case err != nil:
		fail(w, http.StatusInternalServerError, "the ledger cannot be written")
	case a.Estado == Rechazado:
		fail(w, http.StatusPaymentRequired, ErrTarjetaRechazada.Error())
	case a.Estado == Anulado:
		fail(w, http.StatusGone, ErrAnulado.Error())
	default: // also when it was given back since: the first answer
		status := http.StatusOK
		if a.Llamadas == 1 {
			status = http.StatusCreated
		}
		answer(w, status, Recibo{a.Ref, a.Importe})
	}
}

func (s *Simulator) postAnulacion(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Clave string `json:"clave"`
	}
	switch {
	case !decode(w, r, &in):
		return
	case !visible.MatchString(in.Clave):
		fail(w, http.StatusBadRequest, "clave must have 1 to 200 visible ASCII characters")
		return
	}
	if !s.pass(w, r, s.refuses("anulacion/"+in.Clave)) {
		return
	}
	a, err := s.anular(in.Clave)
	switch {
	case err != nil:
		fail(w, http.StatusInternalServerError, "the ledger cannot be written")
	case a.Estado == Devuelto:
		answer(w, http.StatusOK, Devolucion{a.RefDevolucion, a.Importe})
	default:
		answer(w, http.StatusOK, Devolucion{})
	}
}

// pass lets a call through after the simulated latency, unless it is refused.
func (s *Simulator) pass(w http.ResponseWriter, r *http.Request, refuse bool) bool {
	if s.opts.Latency > 0 && !wait(r, s.opts.Latency) {
		refuse = true
	}
	if refuse {
		fail(w, http.StatusServiceUnavailable, "simulated outage")
	}
	return !refuse
}

// wait is false if the client left or the simulator stops before d is over.
func wait(r *http.Request, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

func (s *Simulator) getLibro(w http.ResponseWriter, r *http.Request) {
	query, limit := r.URL.Query(), maxPagina
	if text := query.Get("limite"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxPagina {
			fail(w, http.StatusBadRequest, "limite must be from 1 to "+strconv.Itoa(maxPagina))
			return
		}
		limit = n
	}
	desde := query.Get("desde")
	if desde != "" && !visible.MatchString(desde) {
		fail(w, http.StatusBadRequest, "desde must have up to 200 visible ASCII characters")
		return
	}
	list, err := s.page(desde, limit)
	if err != nil {
		fail(w, http.StatusInternalServerError, "the ledger cannot be read")
		return
	}
	answer(w, http.StatusOK, list)
}

func (s *Simulator) getResumen(w http.ResponseWriter, _ *http.Request) {
	resumen, err := s.Resumen()
	if err != nil {
		fail(w, http.StatusInternalServerError, "the ledger cannot be read")
		return
	}
	answer(w, http.StatusOK, resumen)
}

func getHealth(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]string{"status": "ok"})
}

func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		fail(w, http.StatusRequestEntityTooLarge, "the body may have "+strconv.Itoa(maxBody)+" bytes")
		return false
	case err != nil:
		fail(w, http.StatusBadRequest, "the body broke off")
		return false
	}
	if err := json.Unmarshal(body, into); err != nil {
		fail(w, http.StatusBadRequest, "the body must be one JSON object of the documented form")
		return false
	}
	return true
}

func answer(w http.ResponseWriter, status int, body any) {
	send(w, status, "application/json", body)
}

func fail(w http.ResponseWriter, status int, detail string) {
	send(w, status, "application/problem+json", map[string]any{"status": status, "title": http.StatusText(status), "detail": detail})
}

func send(w http.ResponseWriter, status int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false) // it would make an entry six times as long
	_ = encoder.Encode(body)     // the client may be gone
}
