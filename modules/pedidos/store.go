package pedidos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"km0/modules/pedidos/contract"
	"km0/platform/faults"
	"km0/platform/outbox"
)

// Crear takes an order: the order, its history and its event in one round trip
// and one transaction. It reports whether the order is new; the identical
// repeat, by id or by clave (the client's Idempotency-Key, or ""), returns the
// order as it stands now, whatever became of the first answer. Another content
// is ErrOtroPedido, one beyond a limit a *contract.FieldError, and one whose
// event no bus would take ErrMuyGrande. After any other error the order may or
// may not be there: the identical repeat finds out.
func (m *Module) Crear(ctx context.Context, p contract.Pedido, clave string) (Registro, bool, error) {
	p = canonico(p)
	huella, err := huella(p)
	if err != nil {
		return Registro{}, false, err
	}
	if p.ID == "" {
		p.ID = "P-" + outbox.NewID()
	}
	if err := p.Validate(); err != nil {
		return Registro{}, false, err
	}
	r := Registro{Pedido: p, Estado: Creado, Total: p.Total(), huella: huella}
	if clave != "" {
		r.claveCliente = &clave
	}
	err = m.insert(ctx, &r)
	var pg *pgconn.PgError
	switch {
	case err == nil:
		faults.Point(faults.OrderCommitted)
		m.outbox.Wake()
		return r, true, nil
	case errors.As(err, &pg) && pg.Code == "23505": // it was taken before
		anterior, err := m.primero(ctx, r)
		return anterior, false, err
	case errors.Is(err, outbox.ErrTooLarge):
		return Registro{}, false, fmt.Errorf("%w: %w", ErrMuyGrande, err)
	}
	return Registro{}, false, fmt.Errorf("create order %s: %w", p.ID, err)
}

func (m *Module) insert(ctx context.Context, r *Registro) error {
	n := len(r.Lineas)
	productos, cantidades, precios := make([]string, n), make([]int32, n), make([]int64, n)
	for i, l := range r.Lineas {
		productos[i], cantidades[i], precios[i] = l.Producto, l.Cantidad, l.PrecioCentimos
	}
	version := 1
	var direccion []byte
	if r.Direccion != nil {
		version = 2
		direccion, _ = json.Marshal(r.Direccion) // strings only
	}
	b := &pgx.Batch{}
	b.Queue(`
		INSERT INTO pedidos (id, cliente, mercado, estado, tarjeta, total_centimos, direccion_entrega, clave_idempotencia, huella)
		VALUES ($1, $2, $3, 'creado', $4, $5, $6, $7, $8)
		RETURNING creado_en, actualizado_en`,
		r.ID, r.Cliente, r.Mercado, r.Tarjeta, r.Total, direccion, r.claveCliente, r.huella,
	).QueryRow(func(row pgx.Row) error { return row.Scan(&r.Creado, &r.Actualizado) })
	b.Queue(`
		INSERT INTO lineas_pedido (pedido_id, linea, producto, cantidad, precio_centimos)
		SELECT $1, n, p, c, e FROM unnest($2::text[], $3::int[], $4::bigint[]) WITH ORDINALITY AS l (p, c, e, n)`,
		r.ID, productos, cantidades, precios)
	r.Historial = []Cambio{{Estado: Creado}}
	b.Queue(`INSERT INTO historial_pedido (pedido_id, orden, estado) VALUES ($1, 1, 'creado') RETURNING en`, r.ID).QueryRow(func(row pgx.Row) error { return row.Scan(&r.Historial[0].En) })
	err := m.outbox.Publish(ctx, outbox.Batch(b), evento(contract.PedidoCreado, version, r.ID, r.Pedido))
	if err != nil {
		return err
	}
	return m.db.SendBatch(ctx, b).Close()
}

func evento(tipo string, version int, id string, datos any) outbox.Event {
	return outbox.Event{Agregado: "pedido", AgregadoID: id, Tipo: tipo, Version: version, Topic: contract.Topic, Datos: datos}
}

// primero finds the order that has the id or the key of r.
func (m *Module) primero(ctx context.Context, r Registro) (Registro, error) {
	rows, err := m.db.Query(ctx, `SELECT id FROM pedidos WHERE id = $1 OR clave_idempotencia = $2`, r.ID, r.claveCliente)
	if err != nil {
		return Registro{}, fmt.Errorf("find the first order of %s: %w", r.ID, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	switch {
	case err != nil:
		return Registro{}, fmt.Errorf("find the first order of %s: %w", r.ID, err)
	case len(ids) != 1: // the id of one order and the key of another
		return Registro{}, ErrOtroPedido
	}
	anterior, err := m.Pedido(ctx, ids[0])
	if err != nil {
		return Registro{}, err
	}
	if !bytes.Equal(anterior.huella, r.huella) {
		return Registro{}, ErrOtroPedido
	}
	return anterior, nil
}

const columnas = `id, cliente, mercado, estado, tarjeta, total_centimos, direccion_entrega, coalesce(motivo, ''), huella, creado_en, actualizado_en`

func leer(row pgx.CollectableRow) (r Registro, err error) {
	var direccion []byte
	err = row.Scan(&r.ID, &r.Cliente, &r.Mercado, &r.Estado, &r.Tarjeta, &r.Total, &direccion, &r.Motivo, &r.huella, &r.Creado, &r.Actualizado)
	if err == nil && direccion != nil {
		err = json.Unmarshal(direccion, &r.Direccion)
	}
	return r, err
}

// Pedido returns an order with its lines and its history, or ErrNoExiste.
func (m *Module) Pedido(ctx context.Context, id string) (r Registro, err error) {
	b := &pgx.Batch{}
	b.Queue(`SELECT `+columnas+` FROM pedidos WHERE id = $1`, id).Query(func(rows pgx.Rows) error {
		r, err = pgx.CollectExactlyOneRow(rows, leer)
		return err
	})
	b.Queue(`SELECT producto, cantidad, precio_centimos FROM lineas_pedido WHERE pedido_id = $1 ORDER BY linea`, id).
		Query(func(rows pgx.Rows) error {
			r.Lineas, err = pgx.CollectRows(rows, pgx.RowToStructByPos[contract.Linea])
			return err
		})
	b.Queue(`SELECT estado, coalesce(motivo, ''), en FROM historial_pedido WHERE pedido_id = $1 ORDER BY orden`, id).
		Query(func(rows pgx.Rows) error {
			r.Historial, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Cambio])
			return err
		})
	switch err := m.db.SendBatch(ctx, b).Close(); {
	case errors.Is(err, pgx.ErrNoRows):
		return Registro{}, ErrNoExiste
	case err != nil:
		return Registro{}, fmt.Errorf("read order %s: %w", id, err)
	}
	return r, nil
}

// Filtro selects orders of Pedidos; zero values select all.
type Filtro struct {
	Cliente string
	Estado  Estado
	Antes   Posicion // only orders after this one in the list
	Limite  int
}

// Posicion is the place of an order in the list: newest first, and by id where
// two were created in the same microsecond.
type Posicion struct {
	Creado time.Time `json:"c"`
	ID     string    `json:"i"`
}

// Pedidos lists orders, newest first, without their lines and history.
func (m *Module) Pedidos(ctx context.Context, f Filtro) ([]Registro, error) {
	query, args := f.query()
	rows, err := m.db.Query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list orders: %w", err)
	}
	list, err := pgx.CollectRows(rows, leer)
	if err != nil {
		return nil, fmt.Errorf("list orders: %w", err)
	}
	return list, nil
}

// query has only the conditions that are asked for: with "or there is no
// filter" in one statement for all, a generic plan walks the whole table. It
// reads pedidos_por_cliente or pedidos_recientes in its order. No index starts
// with estado: it would make every change of state a new entry in all indexes.
func (f Filtro) query() (string, []any) {
	query, args := `SELECT `+columnas+` FROM pedidos WHERE true`, []any{f.Limite}
	if f.Cliente != "" {
		args = append(args, f.Cliente)
		query += fmt.Sprintf(` AND cliente = $%d`, len(args))
	}
	if f.Estado != "" {
		args = append(args, string(f.Estado))
		query += fmt.Sprintf(` AND estado = $%d`, len(args))
	}
	if f.Antes != (Posicion{}) {
		args = append(args, f.Antes.Creado, f.Antes.ID)
		query += fmt.Sprintf(` AND (creado_en, id) < ($%d, $%d)`, len(args)-1, len(args))
	}
	return query + ` ORDER BY creado_en DESC, id DESC LIMIT $1`, args
}

// cambiar moves an order to another state, if it can go there from where it
// is, with its event; it reports whether it did. The row is locked first, so
// the events of one order are written in the order of its changes.
func (m *Module) cambiar(ctx context.Context, tx pgx.Tx, id string, a Estado, motivo string) (bool, error) {
	var (
		estado Estado
		total  int64
	)
	err := tx.QueryRow(ctx, `SELECT estado, total_centimos FROM pedidos WHERE id = $1 FOR UPDATE`, id).Scan(&estado, &total)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, ErrNoExiste
	case err != nil:
		return false, fmt.Errorf("lock order %s: %w", id, err)
	case !estado.Puede(a):
		return false, nil
	}
	b := &pgx.Batch{}
	b.Queue(`
		UPDATE pedidos SET estado = $2, motivo = nullif($3, ''), actualizado_en = clock_timestamp() WHERE id = $1`, id, string(a), motivo)
	b.Queue(`
		INSERT INTO historial_pedido (pedido_id, orden, estado, motivo)
		SELECT $1, max(orden) + 1, $2, nullif($3, '') FROM historial_pedido WHERE pedido_id = $1`, id, string(a), motivo)
	e := evento(contract.PedidoPagado, 1, id, contract.Pagado{ID: id, Importe: total})
	if a == Cancelado {
		e = evento(contract.PedidoCancelado, 1, id, contract.Cancelado{ID: id, Motivo: motivo})
	}
	if err := m.outbox.Publish(ctx, outbox.Batch(b), e); err != nil {
		return false, err
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return false, fmt.Errorf("move order %s to %s: %w", id, a, err)
	}
	return true, nil
}

// Cancelar cancels an order for its client; an order that is cancelled already
// stays as it is.
func (m *Module) Cancelar(ctx context.Context, id, motivo string) (Registro, error) {
	err := pgx.BeginFunc(ctx, m.db, func(tx pgx.Tx) error {
		_, err := m.cambiar(ctx, tx, id, Cancelado, motivo)
		return err
	})
	if err != nil {
		return Registro{}, fmt.Errorf("cancel order %s: %w", id, err)
	}
	m.outbox.Wake()
	return m.Pedido(ctx, id)
}
