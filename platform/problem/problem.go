// Package problem makes HTTP APIs that answer every fault with an RFC 9457
// problem that names the field and never repeats its value.
//
// What is wrong with a request is 400 before a handler sees it: JSON is read
// strictly (see NewAPI), and no address with text that a database would refuse
// gets through. When the database is away the answer is 503 with Retry-After;
// what an unexpected error says goes to the log, never to the client.
package problem

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"km0/platform/postgres"
)

const (
	// MaxBody is the largest request body, in bytes.
	MaxBody = 64 << 10
	// BodyTimeout is how long a client may take to send it.
	BodyTimeout = 5 * time.Second
)

// NewAPI makes an API on mux that describes itself at /openapi.json and
// /openapi.yaml. What is wrong with a request is 400 (413 and 415 where HTTP
// has a status of its own), what is unknown 404 or 405. Bodies are JSON in
// UTF-8 in which every name stands once, exactly as documented; numbers are
// 64-bit integers without fraction and exponent. It sets huma's package-wide
// settings: a process has one style of errors.
func NewAPI(mux *http.ServeMux, title, version string) huma.API {
	install()
	cfg := huma.DefaultConfig(title, version)
	cfg.DocsPath = "" // the page would load its scripts from elsewhere
	cfg.SchemasPath = ""
	cfg.CreateHooks = nil // they add "$schema" to every body
	cfg.Formats = map[string]huma.Format{"application/json": strict(), "json": strict()}
	api := humago.New(mux, cfg)
	api.UseMiddleware(storable(api))
	mux.Handle("/", unknown(mux))
	return api
}

var install = sync.OnceFunc(func() {
	// {"cantidad": 1, "CANTIDAD": -5}: encoding/json would take the second.
	huma.ValidateStrictCasing = true
	huma.NewError = New
})

// New is huma.NewError without the values that huma would repeat, among them
// card tokens, with 400 for a request that does not validate, and with nothing
// but the status for an error of ours.
func New(status int, detail string, errs ...error) huma.StatusError {
	switch status {
	case http.StatusUnprocessableEntity:
		status = http.StatusBadRequest
	case http.StatusInternalServerError:
		detail, errs = "an internal error; the request may be repeated", nil
	case http.StatusUnsupportedMediaType:
		detail, errs = "the body must be application/json", nil
	}
	p := &huma.ErrorModel{Status: status, Title: http.StatusText(status), Detail: detail}
	for _, err := range errs {
		if err != nil {
			p.Errors = append(p.Errors, fault(err))
		}
	}
	return p
}

func fault(err error) *huma.ErrorDetail {
	var d *huma.ErrorDetail
	if !errors.As(err, &d) {
		return &huma.ErrorDetail{Message: err.Error()}
	}
	if path, message, ok := strings.Cut(d.Message, split); ok {
		return &huma.ErrorDetail{Location: d.Location + path, Message: message}
	}
	return &huma.ErrorDetail{Location: d.Location, Message: d.Message}
}

// Field is a 400 about one field, such as "body.lineas[0].cantidad".
func Field(location, message string) error {
	return New(http.StatusBadRequest, "validation failed", &huma.ErrorDetail{Location: location, Message: message})
}

// Failure is the answer to an error that the request did not cause: 503 with
// Retry-After if the database is away or too slow, else 500 and a line in the
// log.
func Failure(logger *slog.Logger, err error) error {
	switch {
	case postgres.Unavailable(err), postgres.Transient(err), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, context.Canceled): // the client is gone, or so the request's own context says
		return huma.ErrorWithHeaders(
			New(http.StatusServiceUnavailable, "the database does not answer; repeat the request, with the same id or Idempotency-Key if it made something"),
			http.Header{"Retry-After": {"1"}})
	}
	logger.Error("request failed", "error", err)
	return New(http.StatusInternalServerError, "")
}

var methods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

// unknown answers what no route of mux takes.
func unknown(mux *http.ServeMux) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var allowed []string
		for _, method := range methods {
			other := r.Clone(r.Context())
			other.Method = method
			if _, pattern := mux.Handler(other); pattern != "/" && pattern != "" {
				allowed = append(allowed, method)
			}
		}
		if len(allowed) == 0 || slices.Contains(allowed, r.Method) {
			Write(w, http.StatusNotFound, "there is nothing at this path; see /openapi.json")
			return
		}
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		Write(w, http.StatusMethodNotAllowed, "this path takes "+strings.Join(allowed, ", "))
	}
}
