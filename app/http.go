package app

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"runtime/debug"
	"time"

	"km0/platform/envelope"
	"km0/platform/lifecycle"
	"km0/platform/outbox"
	"km0/platform/problem"
)

const readTimeout = 15 * time.Second

// serve is an HTTP server as a component, with a limit on everything a client
// could hold up. The handler is made when the component starts.
func (a *App) serve(name string, l net.Listener, handler func() http.Handler) lifecycle.Component {
	failed := make(chan error, 1)
	server := &http.Server{
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: readTimeout,
		WriteTimeout: readTimeout + a.cfg.HTTP.Timeout + 10*time.Second, // it counts from the first byte read
		IdleTimeout:  time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(a.logger.Handler(), slog.LevelDebug),
	}
	return lifecycle.Component{
		Name: name, Failed: failed,
		Start: func(context.Context) error {
			server.Handler = handler()
			go func() {
				if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
					failed <- err
				}
			}()
			return nil
		},
		Stop: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, a.cfg.HTTP.Timeout+time.Second) // no request lasts longer
			defer cancel()
			if err := server.Shutdown(ctx); err != nil {
				a.logger.Warn("clients that hang are cut off", "component", name, "error", err)
				return server.Close() // they are no reason for a failure of the stop
			}
			return nil
		},
	}
}

// withDeadline limits every request: with the database away, it is answered
// with 503 instead of hanging.
func withDeadline(d time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), d)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

const correlationHeader = "X-Correlation-ID"

var correlationForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)

// withCorrelation takes the client's correlation id, or makes one; events that
// the request causes carry it.
func withCorrelation(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(correlationHeader)
		if !correlationForm.MatchString(id) {
			id = outbox.NewID()
		}
		w.Header().Set(correlationHeader, id)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r.WithContext(envelope.WithCorrelation(r.Context(), id)))
	})
}

// withRecovery answers a panic with 500; other requests go on.
func withRecovery(logger *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if v := recover(); v != nil {
				logger.Error("panic in a request", "method", r.Method, "route", r.Pattern, "panic", v, "stack", string(debug.Stack()))
				problem.Write(w, http.StatusInternalServerError, "an internal error; the request may be repeated")
			}
		}()
		next.ServeHTTP(w, r)
	})
}
