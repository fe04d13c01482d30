package pedidos

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"km0/modules/pedidos/contract"
	"km0/platform/problem"
)

// pedidoVista is an order as the API shows it.
type pedidoVista struct {
	ID          string              `json:"id"`
	Cliente     string              `json:"cliente"`
	Mercado     string              `json:"mercado"`
	Tarjeta     string              `json:"tarjeta" doc:"Masked."`
	Lineas      []contract.Linea    `json:"lineas,omitempty"`
	Direccion   *contract.Direccion `json:"direccion_entrega,omitempty"`
	Estado      Estado              `json:"estado" enum:"creado,pagado,cancelado"`
	Motivo      string              `json:"motivo,omitempty" doc:"Why it was cancelled."`
	Total       int64               `json:"total_centimos"`
	Creado      time.Time           `json:"creado_en"`
	Actualizado time.Time           `json:"actualizado_en"`
	Historial   []cambioVista       `json:"historial,omitempty"`
}

type cambioVista struct {
	Estado Estado    `json:"estado"`
	Motivo string    `json:"motivo,omitempty"`
	En     time.Time `json:"en"`
}

func ver(r Registro) pedidoVista {
	v := pedidoVista{
		ID: r.ID, Cliente: r.Cliente, Mercado: r.Mercado, Tarjeta: enmascarada(r.Tarjeta),
		Lineas: r.Lineas, Direccion: r.Direccion, Estado: r.Estado, Motivo: r.Motivo, Total: r.Total,
		Creado: r.Creado, Actualizado: r.Actualizado,
	}
	for _, c := range r.Historial {
		v.Historial = append(v.Historial, cambioVista(c))
	}
	return v
}

type crearEntrada struct {
	Clave string `header:"Idempotency-Key" maxLength:"200" pattern:"^[!-~]*$" patternDescription:"visible ASCII" doc:"Repeats with the same key and content return the first result."`
	Body  contract.Pedido
}

type crearSalida struct {
	Status   int
	Location string `header:"Location"`
	Body     pedidoVista
}

type pedidoEntrada struct {
	ID string `path:"id" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$" patternDescription:"1 to 64 of A-Z a-z 0-9 . _ -, starting with a letter or digit"`
}

type pedidoSalida struct{ Body pedidoVista }

type cancelarEntrada struct {
	ID   string `path:"id" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$" patternDescription:"1 to 64 of A-Z a-z 0-9 . _ -, starting with a letter or digit"`
	Body *struct {
		Motivo string `json:"motivo" required:"false" maxLength:"60" pattern:"^[a-z_]*$" doc:"In snake case; 'cliente' if left out."`
	} `required:"false"`
}

type listaEntrada struct {
	Cliente string `query:"cliente" maxLength:"100"`
	Estado  string `query:"estado" enum:"creado,pagado,cancelado"`
	Limit   int    `query:"limit" minimum:"1" maximum:"200" default:"50"`
	Cursor  string `query:"cursor" maxLength:"300" doc:"From the page before."`
}

type listaSalida struct {
	Body struct {
		Pedidos []pedidoVista `json:"pedidos"`
		Cursor  string        `json:"cursor,omitempty" doc:"For the next page; absent on the last."`
	}
}

// Routes adds the module's routes to api.
func (m *Module) Routes(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "crear-pedido", Method: http.MethodPost, Path: "/pedidos", DefaultStatus: http.StatusCreated,
		Summary:      "Place an order",
		Description:  "201 for a new order, 200 with the first result for its identical repeat, 409 for another content under the same id or Idempotency-Key.",
		MaxBodyBytes: problem.MaxBody, BodyReadTimeout: problem.BodyTimeout,
		Errors: []int{400, 409, 413, 503},
	}, m.postPedido)
	huma.Register(api, huma.Operation{
		OperationID: "ver-pedido", Method: http.MethodGet, Path: "/pedidos/{id}", Summary: "An order, its state and its history",
		Errors: []int{400, 404, 503},
	}, m.getPedido)
	huma.Register(api, huma.Operation{
		OperationID: "listar-pedidos", Method: http.MethodGet, Path: "/pedidos", Summary: "Orders, newest first", Errors: []int{400, 503},
	}, m.getPedidos)
	huma.Register(api, huma.Operation{
		OperationID: "cancelar-pedido", Method: http.MethodPost, Path: "/pedidos/{id}/cancelacion", DefaultStatus: http.StatusOK,
		Summary:      "Cancel an order; stock and money go back",
		MaxBodyBytes: problem.MaxBody, BodyReadTimeout: problem.BodyTimeout,
		Errors: []int{400, 404, 503},
	}, m.postCancelacion)
}

func (m *Module) postPedido(ctx context.Context, in *crearEntrada) (*crearSalida, error) {
	pedido := in.Body
	if pedido.ID == "" {
		pedido.ID = "por-asignar" // only to validate the rest
	}
	if err := pedido.Validate(); err != nil {
		return nil, problem.Field("body", err.Error())
	}
	r, nuevo, err := m.Crear(ctx, in.Body, in.Clave)
	switch {
	case errors.Is(err, ErrOtroPedido):
		return nil, problem.New(http.StatusConflict, err.Error())
	case errors.Is(err, ErrMuyGrande):
		return nil, problem.New(http.StatusRequestEntityTooLarge, err.Error())
	case err != nil:
		return nil, problem.Away(err)
	}
	out := &crearSalida{Status: http.StatusOK, Location: "/pedidos/" + r.ID, Body: ver(r)}
	if nuevo {
		out.Status = http.StatusCreated
	}
	return out, nil
}

func (m *Module) getPedido(ctx context.Context, in *pedidoEntrada) (*pedidoSalida, error) {
	return respuesta(m.Pedido(ctx, in.ID))
}

func (m *Module) postCancelacion(ctx context.Context, in *cancelarEntrada) (*pedidoSalida, error) {
	motivo := MotivoCliente
	if in.Body != nil && in.Body.Motivo != "" {
		motivo = in.Body.Motivo
	}
	return respuesta(m.Cancelar(ctx, in.ID, motivo))
}

func respuesta(r Registro, err error) (*pedidoSalida, error) {
	switch {
	case errors.Is(err, ErrNoExiste):
		return nil, problem.New(http.StatusNotFound, ErrNoExiste.Error())
	case err != nil:
		return nil, problem.Away(err)
	}
	return &pedidoSalida{Body: ver(r)}, nil
}

func (m *Module) getPedidos(ctx context.Context, in *listaEntrada) (*listaSalida, error) {
	if !utf8.ValidString(in.Cliente) || strings.ContainsFunc(in.Cliente, unicode.IsControl) {
		return nil, problem.Field("query.cliente", "control characters and what is no UTF-8 are not allowed")
	}
	f := Filtro{Cliente: canonico(contract.Pedido{Cliente: in.Cliente}).Cliente, Estado: Estado(in.Estado), Limite: in.Limit + 1}
	if in.Cursor != "" {
		var err error
		if f.AntesDe, f.AntesDeI, err = desde(in.Cursor); err != nil {
			return nil, problem.Field("query.cursor", "not a cursor of this list")
		}
	}
	registros, err := m.Pedidos(ctx, f)
	if err != nil {
		return nil, problem.Away(err)
	}
	out := &listaSalida{}
	out.Body.Pedidos = []pedidoVista{}
	if len(registros) > in.Limit {
		registros = registros[:in.Limit]
		out.Body.Cursor = cursor(registros[in.Limit-1])
	}
	for _, r := range registros {
		out.Body.Pedidos = append(out.Body.Pedidos, ver(r))
	}
	return out, nil
}

type posicion struct {
	En time.Time `json:"e"`
	ID string    `json:"i"`
}

// cursor is opaque to clients: where the next page starts.
func cursor(r Registro) string {
	encoded, _ := json.Marshal(posicion{r.Creado, r.ID}) // cannot fail
	return base64.RawURLEncoding.EncodeToString(encoded)
}

func desde(cursor string) (time.Time, string, error) {
	decoded, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return time.Time{}, "", err
	}
	var p posicion
	if err := json.Unmarshal(decoded, &p); err != nil || !contract.IsID(p.ID) || p.En.IsZero() {
		return time.Time{}, "", errors.New("not a cursor")
	}
	return p.En, p.ID, nil
}
