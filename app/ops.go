package app

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"km0/platform/deadletter"
	"km0/platform/problem"
)

// readiness is where the process stands in its life.
type readiness struct{ state atomic.Int32 }

func (r *readiness) open()        { r.state.CompareAndSwap(0, 1) }
func (r *readiness) close()       { r.state.Store(2) }
func (r *readiness) closed() bool { return r.state.Load() == 2 }
func (r *readiness) is() bool     { return r.state.Load() == 1 }

const probeTimeout = 2 * time.Second

func (a *App) opsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{Registry: a.registry, ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]string{"status": "alive"})
	})
	mux.HandleFunc("GET /readyz", a.readyz)
	if a.cfg.Ops.Token == "" {
		return mux
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want := "Bearer " + a.cfg.Ops.Token
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte(want)) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			problem.Write(w, http.StatusUnauthorized, "send the token of ops.token as a bearer token")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// readyz is 200 only while consumers really consume: the process is neither
// starting nor stopping, its databases answer and its lane sessions are open.
func (a *App) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), probeTimeout)
	defer cancel()
	var (
		mu      sync.Mutex
		parts   = map[string]string{}
		all     = true
		probing sync.WaitGroup
	)
	note := func(name string, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		parts[name] = "ready"
		if !ok {
			parts[name], all = "not ready", false
		}
	}
	note("process", a.ready.is())
	if a.ready.is() {
		for i, db := range a.databases() {
			note("lanes "+db.name, a.claims[i].Up())
			probing.Go(func() { note("database "+db.name, db.pool.Ping(ctx) == nil) })
		}
	}
	probing.Wait()
	status := http.StatusOK
	if !all {
		status = http.StatusServiceUnavailable
	}
	reply(w, status, map[string]any{"ready": all, "parts": parts})
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}

// lagCollector reads how far everything is behind when Prometheus asks.
type lagCollector struct{ app *App }

var (
	outboxPending  = prometheus.NewDesc("km0_outbox_pending_rows", "Events not yet published.", []string{"module"}, nil)
	outboxOldest   = prometheus.NewDesc("km0_outbox_oldest_pending_seconds", "Age of the oldest event not yet published.", []string{"module"}, nil)
	outboxSetAside = prometheus.NewDesc("km0_outbox_set_aside_rows", "Events the bus refused for good.", []string{"module"}, nil)
	consumerLag    = prometheus.NewDesc("km0_consumer_lag_messages", "Messages waiting for a consumer.", []string{"consumer"}, nil)
	consumerOldest = prometheus.NewDesc("km0_consumer_lag_oldest_seconds", "Age of the oldest message waiting for a consumer.", []string{"consumer"}, nil)
	deadLetters    = prometheus.NewDesc("km0_dead_letters", "Dead letters in the archive.", []string{"module", "consumer", "class"}, nil)
	deadOldest     = prometheus.NewDesc("km0_dead_letters_oldest_seconds", "Age of the oldest dead letter.", []string{"module", "consumer", "class"}, nil)
	poolUsed       = prometheus.NewDesc("km0_pool_connections_in_use", "Database connections in use.", []string{"database"}, nil)
	poolMax        = prometheus.NewDesc("km0_pool_connections_max", "Most database connections.", []string{"database"}, nil)
)

// Describe implements prometheus.Collector.
func (l *lagCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{outboxPending, outboxOldest, outboxSetAside, consumerLag, consumerOldest, deadLetters, deadOldest, poolUsed, poolMax} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. Databases are asked at the same
// time: what one cannot say in time is an error of its metrics (counted by
// promhttp), and those of the others are served.
func (l *lagCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	for _, db := range l.app.databases() {
		gauge(ch, poolUsed, float64(db.pool.Stat().AcquiredConns()), db.name)
		gauge(ch, poolMax, float64(db.pool.Stat().MaxConns()), db.name)
	}
	var asking sync.WaitGroup
	asking.Go(func() { l.bus(ctx, ch) })
	for _, h := range l.app.hosted {
		asking.Go(func() { outboxMetrics(ctx, ch, h) })
		asking.Go(func() { deadLetterMetrics(ctx, ch, h) })
	}
	asking.Wait()
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (l *lagCollector) bus(ctx context.Context, ch chan<- prometheus.Metric) {
	lags, err := l.app.driver.Lag(ctx)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(consumerLag, err)
	}
	for name, lag := range lags {
		gauge(ch, consumerLag, float64(lag.Messages), name)
		gauge(ch, consumerOldest, lag.OldestSeconds, name)
	}
}

func outboxMetrics(ctx context.Context, ch chan<- prometheus.Metric, h *hosted) {
	lag, err := h.outbox.Lag(ctx)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(outboxPending, err)
		return
	}
	gauge(ch, outboxPending, float64(lag.Pending), h.name)
	gauge(ch, outboxOldest, lag.OldestSeconds, h.name)
	gauge(ch, outboxSetAside, float64(lag.SetAside), h.name)
}

func deadLetterMetrics(ctx context.Context, ch chan<- prometheus.Metric, h *hosted) {
	counts, err := deadletter.Archive{Pool: h.pool}.Counts(ctx)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(deadLetters, err)
	}
	for _, c := range counts {
		gauge(ch, deadLetters, float64(c.Letters), h.name, c.Consumer, string(c.Class))
		gauge(ch, deadOldest, c.OldestSeconds, h.name, c.Consumer, string(c.Class))
	}
}
