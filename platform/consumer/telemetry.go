package consumer

import (
	"context"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"

	"km0/platform/deadletter"
)

// Outcome is what became of a delivery.
type Outcome string

// The outcomes; a delivery has one.
const (
	Procesado Outcome = "procesado" // the effect was committed
	Duplicado Outcome = "duplicado" // an earlier delivery had it committed
	Ignorado  Outcome = "ignorado"  // of a type the consumer does not handle
	Rechazado Outcome = "rechazado" // a business rule said no; the rejection was committed
	Muerto    Outcome = "muerto"    // archived as a dead letter
	Devuelto  Outcome = "devuelto"  // not acknowledged: it comes back
)

var outcomes = []Outcome{Procesado, Duplicado, Ignorado, Rechazado, Muerto, Devuelto}

// Metrics of all consumers of a process.
type Metrics struct {
	deliveries  *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
	failures    *prometheus.CounterVec
	unarchived  *prometheus.CounterVec
	reusedIDs   *prometheus.CounterVec
	pausedGauge *prometheus.GaugeVec
}

// NewMetrics registers the metrics with r; nil keeps them to itself.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "km0_consumer_deliveries_total", Help: "Deliveries by consumer and by what became of them."}, []string{"consumer", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "km0_consumer_delivery_seconds", Help: "From delivery to acknowledgement, retries and pauses included.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}}, []string{"consumer"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "km0_consumer_failed_attempts_total", Help: "Failed attempts by consumer and class of error."}, []string{"consumer", "class"}),
		unarchived: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "km0_consumer_dead_letters_not_stored_total", Help: "Dead letters that could not be archived; their messages were kept."}, []string{"consumer"}),
		reusedIDs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "km0_consumer_reused_ids_total", Help: "Messages whose id was processed before with another content; they became dead letters."}, []string{"consumer"}),
		pausedGauge: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "km0_consumer_paused", Help: "1 while the consumer waits for something that is away."}, []string{"consumer"}),
	}
	if r != nil {
		r.MustRegister(m.deliveries, m.seconds, m.failures, m.unarchived, m.reusedIDs, m.pausedGauge)
	}
	return m
}

// metrics are those of one consumer, resolved once.
type metrics struct {
	all        *Metrics
	consumer   string
	deliveries map[Outcome]prometheus.Counter
	seconds    prometheus.Observer
}

func (m *Metrics) of(consumer string) *metrics {
	if m == nil {
		m = NewMetrics(nil)
	}
	c := &metrics{all: m, consumer: consumer, deliveries: map[Outcome]prometheus.Counter{}, seconds: m.seconds.WithLabelValues(consumer)}
	for _, o := range outcomes {
		c.deliveries[o] = m.deliveries.WithLabelValues(consumer, string(o))
	}
	m.pausedGauge.WithLabelValues(consumer).Set(0) // they exist from the start, for alert rules
	m.unarchived.WithLabelValues(consumer)
	m.reusedIDs.WithLabelValues(consumer)
	return c
}

func (m *metrics) failed(class deadletter.Class) {
	m.all.failures.WithLabelValues(m.consumer, string(class)).Inc()
}

func (m *metrics) notArchived() { m.all.unarchived.WithLabelValues(m.consumer).Inc() }

func (m *metrics) otherContent() { m.all.reusedIDs.WithLabelValues(m.consumer).Inc() }

func (m *metrics) paused(now bool) {
	value := 0.0
	if now {
		value = 1
	}
	m.all.pausedGauge.WithLabelValues(m.consumer).Set(value)
}

// telemetry counts, times and logs each delivery.
func (b *builder) telemetry(next message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) {
		start := time.Now()
		d := &delivery{consumer: b.Name, metrics: b.metrics}
		m.SetContext(context.WithValue(m.Context(), deliveryKey{}, d))
		produced, err := next(m)
		if err != nil {
			d.outcome = Devuelto
		}
		b.metrics.deliveries[d.outcome].Inc()
		b.metrics.seconds.Observe(time.Since(start).Seconds())
		if b.Logger.Enabled(m.Context(), slog.LevelDebug) {
			b.Logger.Debug("delivery", "id_evento", d.event.ID, "tipo", d.event.Tipo, "outcome", d.outcome,
				"correlation_id", correlation(m, d), "attempts", d.attempts, "duration", time.Since(start))
		}
		return produced, err
	}
}
