package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"km0/platform/bus"
	"km0/platform/deadletter"
	"km0/platform/envelope"
)

// Deps is what every consumer of a module shares.
type Deps struct {
	DB      *pgxpool.Pool // the module's database
	Logger  *slog.Logger  // nil discards
	Metrics *Metrics
	Drain   *Drain
	// Committed is called after each commit of an effect: it wakes the relay
	// that brings the effect's events to the bus. It may be nil.
	Committed func()
}

// Register adds c to router, reading from sub. The links of its chain are
// those of Chain; configuration sets them and never changes their order.
func Register(router *message.Router, sub bus.Subscriber, c Consumer, d Deps) error {
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.Committed == nil {
		d.Committed = func() {}
	}
	if d.Drain == nil {
		return fmt.Errorf("consumer %s: Deps.Drain is missing", c.Name)
	}
	if _, taken := router.Handlers()[c.Name]; taken { // Watermill would panic
		return fmt.Errorf("consumer %s: the router has a consumer of this name", c.Name)
	}
	c.Settings = c.Settings.Over(Defaults())
	if err := c.Validate(); err != nil {
		return err
	}
	b := &builder{Consumer: c, Deps: d, archive: deadletter.Archive{Pool: d.DB}}
	b.Logger = d.Logger.With("consumer", c.Name)
	b.metrics = d.Metrics.of(c.Name)
	links, err := b.links()
	if err != nil {
		return fmt.Errorf("consumer %s: %w", c.Name, err)
	}
	handler := router.AddConsumerHandler(c.Name, c.Topic, sub, b.handle)
	for _, l := range links {
		handler.AddMiddleware(l.middleware)
	}
	d.Drain.add(sub)
	return nil
}

// Chain names the links of c as Register builds them, outermost first.
func Chain(c Consumer) []string {
	c.Settings = c.Settings.Over(Defaults())
	b := &builder{Consumer: c, Deps: Deps{Logger: slog.New(slog.DiscardHandler), Drain: NewDrain()}}
	links, err := b.links()
	if err != nil {
		return []string{err.Error()}
	}
	names := make([]string, 0, len(links)+1)
	for _, l := range links {
		names = append(names, l.name)
	}
	return append(names, "handler")
}

// builder makes the links of one consumer.
type builder struct {
	Consumer
	Deps
	archive deadletter.Archive
	metrics *metrics
	paused  state
}

type link struct {
	name       string
	middleware message.HandlerMiddleware
}

// links is the one place that knows the order.
func (b *builder) links() ([]link, error) {
	deadLetter, err := b.deadLetter()
	if err != nil {
		return nil, err
	}
	chain := []link{
		{"telemetry", b.telemetry},
		{"drain", b.drain},
		{"pause", b.pause},
		{"dead letter", deadLetter},
		{"retry", b.retry()},
		{"recoverer", middleware.Recoverer},
	}
	if b.Settings.CircuitBreaker.Failures > 0 {
		chain = append(chain, link{"circuit breaker", b.circuitBreaker()})
	}
	if b.Settings.Throttle.Count > 0 {
		chain = append(chain, link{"throttle", b.throttle()})
	}
	transaction := link{"transaction", b.transaction}
	if b.Settings.Batch.Size > 1 {
		transaction = link{"batch transaction", b.batch()}
	}
	return append(chain,
		link{"timeout", b.timeout},
		link{"error classes", b.classes},
		transaction,
		link{"inbox", b.inbox()},
	), nil
}

// delivery is what the links know of one message. It travels in the message's
// context; one goroutine at a time uses it.
type delivery struct {
	consumer    string
	metrics     *metrics
	event       envelope.Event
	fingerprint []byte
	tx          pgx.Tx
	outcome     Outcome
	attempts    int
	alone       bool              // no batch any more: one it was in was rolled back
	failure     error             // what Retry gave up with
	notStored   error             // why the dead letter could not be archived
	headers     map[string]string // as they came, of a message that failed
}

type deliveryKey struct{}

func deliveryOf(ctx context.Context) *delivery { return ctx.Value(deliveryKey{}).(*delivery) }

// handle is the innermost part: the module's handler.
func (b *builder) handle(m *message.Message) error {
	d := deliveryOf(m.Context())
	d.outcome = Procesado
	return b.Handlers[d.event.Tipo](m.Context(), d.tx, d.event)
}

// Validate says what is wrong with c, all of it at once.
func (c Consumer) Validate() error {
	var wrong []error
	if c.Name == "" || c.Topic == "" || len(c.Handlers) == 0 {
		wrong = append(wrong, errors.New("a consumer needs a name, a topic and a handler"))
	}
	if c.Topic == c.Name+".dlq" {
		wrong = append(wrong, errors.New("a consumer cannot read its own dead letters"))
	}
	wrong = append(wrong, c.Settings.wrong()...)
	if len(wrong) == 0 {
		return nil
	}
	texts := make([]string, len(wrong))
	for i, err := range wrong {
		texts[i] = err.Error()
	}
	return fmt.Errorf("consumer %s: %s", c.Name, strings.Join(texts, "; "))
}
