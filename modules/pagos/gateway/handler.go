package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"time"

	bolt "go.etcd.io/bbolt"
)

const (
	maxBody    = 64 << 10
	maxImporte = 1_000_000_000_000
	maxPagina  = 500
)

var visible = regexp.MustCompile(`^[!-~]{1,200}$`)

// Handler is the simulator's API.
func (s *Simulator) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /cobros", s.postCobro)
	mux.HandleFunc("POST /anulaciones", s.postAnulacion)
	mux.HandleFunc("GET /libro", s.getLibro)
	mux.HandleFunc("GET /libro/resumen", s.getResumen)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	return mux
}

func (s *Simulator) postCobro(w http.ResponseWriter, r *http.Request) {
	c := Cobro{Clave: r.Header.Get("Idempotency-Key")}
	switch {
	case !visible.MatchString(c.Clave):
		fail(w, http.StatusBadRequest, "the header Idempotency-Key must have 1 to 200 visible ASCII characters")
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
	refuse, hang := s.fault(c.Clave)
	if !s.pass(w, r, refuse) {
		return
	}
	a, err := s.cobrar(c)
	if hang {
		select { // the money is taken; the answer comes too late
		case <-time.After(s.opts.HangFor):
		case <-r.Context().Done():
		}
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
	refuse, _ := s.fault("anulacion/" + in.Clave)
	if !s.pass(w, r, refuse) {
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
	if s.opts.Latency > 0 {
		select {
		case <-time.After(s.opts.Latency):
		case <-r.Context().Done(): // the simulator stops, or the client is gone
			refuse = true
		}
	}
	if refuse {
		fail(w, http.StatusServiceUnavailable, "simulated outage")
	}
	return !refuse
}

// getLibro pages through the ledger in the order of keys.
func (s *Simulator) getLibro(w http.ResponseWriter, r *http.Request) {
	limit := maxPagina
	if text := r.URL.Query().Get("limite"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxPagina {
			fail(w, http.StatusBadRequest, "limite must be from 1 to 500")
			return
		}
		limit = n
	}
	desde := []byte(r.URL.Query().Get("desde"))
	pagina := []Asiento{}
	err := s.db.View(func(tx *bolt.Tx) error {
		cursor := tx.Bucket(ledger).Cursor()
		for k, v := cursor.Seek(desde); k != nil && len(pagina) < limit; k, v = cursor.Next() {
			if bytes.Equal(k, desde) {
				continue
			}
			var a Asiento
			if err := json.Unmarshal(v, &a); err != nil {
				return err
			}
			pagina = append(pagina, a)
		}
		return nil
	})
	if err != nil {
		fail(w, http.StatusInternalServerError, "the ledger cannot be read")
		return
	}
	answer(w, http.StatusOK, pagina)
}

func (s *Simulator) getResumen(w http.ResponseWriter, _ *http.Request) {
	resumen, err := s.Resumen()
	if err != nil {
		fail(w, http.StatusInternalServerError, "the ledger cannot be read")
		return
	}
	answer(w, http.StatusOK, resumen)
}

// Resumen adds the ledger up.
func (s *Simulator) Resumen() (r Resumen, err error) {
	r.FallosInyectados = s.injected.Load()
	err = s.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(ledger).ForEach(func(_, v []byte) error {
			var a Asiento
			if err := json.Unmarshal(v, &a); err != nil {
				return err
			}
			switch a.Estado {
			case Rechazado:
				r.Rechazados++
			case Anulado:
				r.Anulados++
			case Devuelto:
				r.Devueltos++
				r.ImporteDevuelto += a.Importe
				fallthrough
			case Cobrado:
				r.Cobros++
				r.ImporteCobrado += a.Importe
			}
			return nil
		})
	})
	return r, err
}

func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	err := dec.Decode(into)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		fail(w, http.StatusRequestEntityTooLarge, "the body may have 65536 bytes")
	case err != nil || dec.Decode(&struct{}{}) != io.EOF:
		fail(w, http.StatusBadRequest, "the body must be one JSON object of the documented form")
		err = errors.New("refused")
	}
	return err == nil
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}

func fail(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"status": status, "title": http.StatusText(status), "detail": detail})
}
