// Package reconcile keeps the books: it compares what the modules, the bus and
// the payment gateway each hold, and says whether orders, events, stock and
// money agree. It reads and changes nothing; run it when nothing moves.
package reconcile

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"km0/modules/pagos/gateway"
)

// Databases are those of a system.
type Databases struct{ Pedidos, Inventario, Pagos, Bus *pgxpool.Pool }

// Ledger is the gateway's own book; gateway.Client is one.
type Ledger interface {
	Libro(ctx context.Context, f func(gateway.Asiento) error) error
}

// Check is one invariant.
type Check struct {
	Name string `json:"name"`
	Want string `json:"want"`
	Got  string `json:"got"`
	OK   bool   `json:"ok"`
}

// Counts are what a person wants to see beside the checks.
type Counts struct {
	Orders      map[string]int64 `json:"orders"`       // by estado
	Events      int64            `json:"events"`       // in the outboxes
	Published   int64            `json:"published"`    // messages on the bus, repeats included
	Duplicates  int64            `json:"duplicates"`   // of them, repeats
	StockMoved  int64            `json:"stock_moved"`  // units deducted
	StockBack   int64            `json:"stock_back"`   // units given back
	Charged     int64            `json:"charged"`      // cents taken by the gateway
	Refunded    int64            `json:"refunded"`     // cents given back by it
	DeadLetters map[string]int64 `json:"dead_letters"` // by class
}

// Report is the outcome.
type Report struct {
	Checks []Check `json:"checks"`
	Counts Counts  `json:"counts"`
}

// OK says whether every invariant holds.
func (r Report) OK() bool {
	return !slices.ContainsFunc(r.Checks, func(c Check) bool { return !c.OK })
}

// Settled says whether nothing is left to do: no event waits for the bus, no
// message for a consumer, no order for its payment. An order whose charge or
// deduction lies among the dead letters does not wait.
func Settled(ctx context.Context, d Databases) (bool, error) {
	for _, q := range []struct {
		pool  *pgxpool.Pool
		query string
	}{
		{d.Pedidos, pendingEvents}, {d.Inventario, pendingEvents}, {d.Pagos, pendingEvents},
		{d.Bus, `SELECT EXISTS (SELECT FROM entregas)`},
	} {
		var pending bool
		if err := q.pool.QueryRow(ctx, q.query).Scan(&pending); err != nil {
			return false, fmt.Errorf("is everything settled: %w", err)
		}
		if pending {
			return false, nil
		}
	}
	return true, nil
}

const pendingEvents = `SELECT EXISTS (SELECT FROM outbox WHERE publicado_en IS NULL AND apartado_en IS NULL)`

// book collects the checks.
type book struct {
	Report
	err error
}

func (b *book) check(name string, want, got any) {
	c := Check{Name: name, Want: fmt.Sprint(want), Got: fmt.Sprint(got)}
	c.OK = c.Want == c.Got
	b.Checks = append(b.Checks, c)
}

// number reads one number; after an error everything is 0 and err is kept.
func (b *book) number(ctx context.Context, pool *pgxpool.Pool, query string, args ...any) (n int64) {
	if b.err == nil {
		b.err = pool.QueryRow(ctx, query, args...).Scan(&n)
	}
	return n
}

// table reads rows of a name and a number.
func (b *book) table(ctx context.Context, pool *pgxpool.Pool, query string) map[string]int64 {
	result := map[string]int64{}
	if b.err != nil {
		return result
	}
	rows, err := pool.Query(ctx, query)
	if err != nil {
		b.err = err
		return result
	}
	var (
		name string
		n    int64
	)
	_, b.err = pgx.ForEachRow(rows, []any{&name, &n}, func() error { result[name] += n; return nil })
	return result
}

// Run checks every invariant. initialStock is what there was of each product
// before the first order.
func Run(ctx context.Context, d Databases, ledger Ledger, initialStock map[string]int64) (Report, error) {
	b := &book{}
	orders := b.orders(ctx, d)
	b.events(ctx, d)
	b.stock(ctx, d, orders, initialStock)
	b.money(ctx, d, orders, ledger)
	b.letters(ctx, d)
	if b.err != nil {
		return Report{}, fmt.Errorf("reconcile: %w", b.err)
	}
	return b.Report, nil
}
