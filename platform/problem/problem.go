// Package problem makes HTTP APIs that answer every fault with an RFC 9457
// problem that names the field and never repeats its value.
package problem

import (
	"context"
	"errors"
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
// /openapi.yaml. What is wrong with a request is 400, what is unknown 404 or
// 405. It sets huma's package-wide settings: a process has one style of errors.
func NewAPI(mux *http.ServeMux, title, version string) huma.API {
	install()
	cfg := huma.DefaultConfig(title, version)
	cfg.DocsPath = "" // the page would load its scripts from elsewhere
	cfg.SchemasPath = ""
	cfg.CreateHooks = nil // they add "$schema" to every body
	api := humago.New(mux, cfg)
	mux.Handle("/", unknown(mux))
	return api
}

var install = sync.OnceFunc(func() {
	// {"cantidad": 1, "CANTIDAD": -5}: encoding/json would take the second.
	huma.ValidateStrictCasing = true
	huma.NewError = New
})

// New is huma.NewError without the values that huma would repeat, among them
// card tokens, and with 400 for a request that does not validate.
func New(status int, detail string, errs ...error) huma.StatusError {
	if status == http.StatusUnprocessableEntity {
		status = http.StatusBadRequest
	}
	p := &huma.ErrorModel{Status: status, Title: http.StatusText(status), Detail: detail}
	for _, err := range errs {
		var d *huma.ErrorDetail
		switch {
		case err == nil:
		case errors.As(err, &d):
			p.Errors = append(p.Errors, &huma.ErrorDetail{Message: d.Message, Location: d.Location})
		default:
			p.Errors = append(p.Errors, &huma.ErrorDetail{Message: err.Error()})
		}
	}
	return p
}

// Field is a 400 about one field, such as "body.lineas[0].cantidad".
func Field(location, message string) error {
	return New(http.StatusBadRequest, "validation failed", &huma.ErrorDetail{Location: location, Message: message})
}

// Away turns an error of the database into 503 with Retry-After if the
// database is away or too slow, and leaves others as they are, which is 500.
func Away(err error) error {
	if postgres.Unavailable(err) || errors.Is(err, context.DeadlineExceeded) || postgres.Transient(err) {
		return huma.ErrorWithHeaders(
			New(http.StatusServiceUnavailable, "the database does not answer; repeat the request, it is safe"),
			http.Header{"Retry-After": {"1"}})
	}
	return err
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
