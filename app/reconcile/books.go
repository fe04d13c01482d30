package reconcile

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"km0/modules/pagos/gateway"
)

// order is an order as pedidos has it.
type order struct {
	ID, Estado string
	Total      int64
}

func (b *book) orders(ctx context.Context, d Databases) map[string]order {
	orders := map[string]order{}
	if b.err != nil {
		return orders
	}
	rows, err := d.Pedidos.Query(ctx, `SELECT id, estado, total_centimos FROM pedidos`)
	if err != nil {
		b.err = err
		return orders
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[order])
	b.err = err
	b.Counts.Orders = map[string]int64{"creado": 0, "pagado": 0, "cancelado": 0}
	for _, o := range list {
		orders[o.ID] = o
		b.Counts.Orders[o.Estado]++
	}
	b.check("every order has one pedido.creado", int64(len(orders)),
		b.number(ctx, d.Pedidos, `SELECT count(*) FROM (SELECT agregado_id FROM outbox WHERE tipo = 'pedido.creado' GROUP BY 1 HAVING count(*) = 1) x`))
	b.check("every state of an order has its event", 0, b.number(ctx, d.Pedidos, `
		SELECT count(*) FROM historial_pedido h FULL JOIN outbox o ON o.agregado_id = h.pedido_id AND o.tipo = 'pedido.' || h.estado
		WHERE h.pedido_id IS NULL OR o.id IS NULL`))
	b.check("the history of every order ends in its state", 0, b.number(ctx, d.Pedidos, `
		SELECT count(*) FROM pedidos p WHERE estado <> (
			SELECT estado FROM historial_pedido WHERE pedido_id = p.id ORDER BY orden DESC LIMIT 1)`))
	return orders
}

func (b *book) events(ctx context.Context, d Databases) {
	var written, waiting int64
	for _, pool := range []*pgxpool.Pool{d.Pedidos, d.Inventario, d.Pagos} {
		written += b.number(ctx, pool, `SELECT count(*) FROM outbox`)
		waiting += b.number(ctx, pool, `SELECT count(*) FROM outbox WHERE publicado_en IS NULL`)
	}
	distinct := b.number(ctx, d.Bus, `SELECT count(DISTINCT id) FROM mensajes WHERE cabeceras->>'id_evento' IS NOT NULL`)
	b.Counts.Events = written
	b.Counts.Published = b.number(ctx, d.Bus, `SELECT count(*) FROM mensajes`)
	b.Counts.Duplicates = b.number(ctx, d.Bus, `SELECT count(*) - count(DISTINCT id) FROM mensajes`)
	b.check("no event waits for the bus", 0, waiting)
	b.check("every event is on the bus", written, distinct)
	b.check("no message waits for a consumer", 0, b.number(ctx, d.Bus, `SELECT count(*) FROM entregas`))
	b.swaps(ctx, d)
}

// swaps compares, key by key, the order of the outbox with that of the first
// copies on the bus.
func (b *book) swaps(ctx context.Context, d Databases) {
	first := map[string]int64{}
	for id, position := range b.table(ctx, d.Bus, `SELECT id, min(posicion) FROM mensajes GROUP BY id`) {
		first[id] = position
	}
	swapped := 0
	for _, pool := range []*pgxpool.Pool{d.Pedidos, d.Inventario, d.Pagos} {
		if b.err != nil {
			return
		}
		rows, err := pool.Query(ctx, `SELECT id::text, agregado_id FROM outbox ORDER BY posicion`)
		if err != nil {
			b.err = err
			return
		}
		last := map[string]int64{}
		var id, key string
		_, b.err = pgx.ForEachRow(rows, []any{&id, &key}, func() error {
			if first[id] < last[key] {
				swapped++
			}
			last[key] = max(last[key], first[id])
			return nil
		})
	}
	b.check("no two events of a key are swapped", 0, swapped)
}

func (b *book) stock(ctx context.Context, d Databases, orders map[string]order, initial map[string]int64) {
	deducted := b.table(ctx, d.Inventario, `
		SELECT l->>'producto', (l->>'cantidad')::bigint FROM descuentos, jsonb_array_elements(lineas) l WHERE estado = 'descontado'`)
	var wrong []string
	now := b.table(ctx, d.Inventario, `SELECT producto, unidades FROM stock`)
	for producto, had := range initial {
		if now[producto] != had-deducted[producto] {
			wrong = append(wrong, fmt.Sprintf("%s: %d, not %d - %d", producto, now[producto], had, deducted[producto]))
		}
	}
	b.check("stock is what it was minus what orders hold", "", strings.Join(wrong, "; "))
	moved := b.table(ctx, d.Inventario, `
		SELECT carga->>'motivo', sum((carga->>'despues')::bigint - (carga->>'antes')::bigint)::bigint
		FROM outbox WHERE tipo = 'stock.actualizado' GROUP BY 1`)
	b.Counts.StockMoved, b.Counts.StockBack = -moved["pedido"], moved["cancelacion"]
	var held int64
	for _, n := range deducted {
		held += n
	}
	b.check("events of stock add up to what orders hold", held, b.Counts.StockMoved-b.Counts.StockBack)

	dead := b.dead(ctx, d.Inventario)
	mismatched := 0
	states := b.states(ctx, d.Inventario, `SELECT pedido_id, estado FROM descuentos`)
	for id, o := range orders {
		switch states[id] {
		case "descontado":
			if o.Estado == "cancelado" {
				mismatched++
			}
		case "devuelto", "anulado", "rechazado":
			if o.Estado != "cancelado" {
				mismatched++
			}
		default:
			if !dead[id] {
				mismatched++
			}
		}
	}
	b.check("orders and deductions agree", 0, mismatched)
}

func (b *book) money(ctx context.Context, d Databases, orders map[string]order, ledger Ledger) {
	entries := map[string]gateway.Asiento{}
	repeated := 0
	if b.err == nil {
		b.err = ledger.Libro(ctx, func(a gateway.Asiento) error {
			entries[strings.TrimPrefix(a.Clave, "cobro-")] = a
			if a.Cargos > 1 || a.Devoluciones > a.Cargos {
				repeated++
			}
			b.Counts.Charged += int64(a.Cargos) * a.Importe
			b.Counts.Refunded += int64(a.Devoluciones) * a.Importe
			return nil
		})
	}
	b.check("the gateway charged no order twice and refunded none twice", 0, repeated)
	dead := b.dead(ctx, d.Pagos)
	states := b.states(ctx, d.Pagos, `SELECT pedido_id, estado FROM pagos`)
	var wrong []string
	var due int64
	for id, o := range orders {
		entry, charged := entries[id]
		net := int64(entry.Cargos-entry.Devoluciones) * entry.Importe
		switch {
		case o.Estado == "pagado":
			due += o.Total
			if net != o.Total || states[id] != "cobrado" {
				wrong = append(wrong, fmt.Sprintf("%s is paid, the gateway holds %d of %d, pagos says %q", id, net, o.Total, states[id]))
			}
		case o.Estado == "cancelado":
			if net != 0 {
				wrong = append(wrong, fmt.Sprintf("%s is cancelled, the gateway holds %d", id, net))
			}
		case !dead[id]:
			wrong = append(wrong, fmt.Sprintf("%s is still %s (charged: %t)", id, o.Estado, charged))
		default:
			due += net
		}
	}
	if len(wrong) > 5 {
		wrong = append(wrong[:5], fmt.Sprintf("and %d more", len(wrong)-5))
	}
	b.check("orders and the gateway's ledger agree", "", strings.Join(wrong, "; "))
	b.check("charges minus refunds are what paid orders cost", due, b.Counts.Charged-b.Counts.Refunded)
}

func (b *book) letters(ctx context.Context, d Databases) {
	b.Counts.DeadLetters = map[string]int64{}
	for _, pool := range []*pgxpool.Pool{d.Pedidos, d.Inventario, d.Pagos} {
		for class, n := range b.table(ctx, pool, `SELECT clase, count(*) FROM mensajes_muertos GROUP BY 1`) {
			b.Counts.DeadLetters[class] += n
		}
	}
	rejected := b.number(ctx, d.Inventario, `SELECT count(*) FROM outbox WHERE tipo = 'stock.insuficiente'`) +
		b.number(ctx, d.Pagos, `SELECT count(*) FROM outbox WHERE tipo = 'pago.rechazado'`)
	b.check("no rejection event without its dead letter", true, rejected <= b.Counts.DeadLetters["negocio"])
}

// dead are the keys of technical dead letters: an operator has to look at
// those orders.
func (b *book) dead(ctx context.Context, pool *pgxpool.Pool) map[string]bool {
	keys := map[string]bool{}
	for key := range b.table(ctx, pool, `SELECT clave, 1 FROM mensajes_muertos WHERE clase <> 'negocio'`) {
		keys[key] = true
	}
	return keys
}

func (b *book) states(ctx context.Context, pool *pgxpool.Pool, query string) map[string]string {
	states := map[string]string{}
	if b.err != nil {
		return states
	}
	rows, err := pool.Query(ctx, query)
	if err != nil {
		b.err = err
		return states
	}
	var id, state string
	_, b.err = pgx.ForEachRow(rows, []any{&id, &state}, func() error { states[id] = state; return nil })
	return states
}
