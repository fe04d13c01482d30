package pedidos

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"time"

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
	Estado Estado    `json:"estado" enum:"creado,pagado,cancelado"`
	Motivo string    `json:"motivo,omitempty"`
	En     time.Time `json:"en"`
}

func ver(r Registro) pedidoVista {
	v := pedidoVista{
		ID: r.ID, Cliente: r.Cliente, Mercado: r.Mercado, Tarjeta: enmascarada(r.Tarjeta),
		Lineas: r.Lineas, Direccion: r.Direccion, Estado: r.Estado, Motivo: r.Motivo, Total: r.Total,
		Creado: r.Creado.UTC(), Actualizado: r.Actualizado.UTC(),
	}
	for _, c := range r.Historial {
		v.Historial = append(v.Historial, cambioVista{c.Estado, c.Motivo, c.En.UTC()})
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
	ID string `path:"id" maxLength:"64"`
}

type pedidoSalida struct{ Body pedidoVista }

type cancelarEntrada struct {
	ID   string `path:"id" maxLength:"64"`
	Body *struct {
		Motivo string `json:"motivo" required:"false" maxLength:"60" pattern:"^[a-z_]*$" patternDescription:"a-z and _" doc:"Why, in snake case; 'cliente' if left out. 'sin_stock' and 'tarjeta_rechazada' are not the client's to give."`
	} `required:"false"`
}

type listaEntrada struct {
	Cliente string `query:"cliente" maxLength:"100" doc:"In any Unicode form."`
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
		Errors: []int{400, 409, 413, 415, 503},
	}, m.postPedido)
	respuestas := api.OpenAPI().Paths["/pedidos"].Post.Responses
	repetido := *respuestas["201"]
	repetido.Description = "The identical repeat: the order as it stands now"
	respuestas["200"] = &repetido
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
		Errors: []int{400, 404, 413, 415, 503},
	}, m.postCancelacion)
}

func (m *Module) postPedido(ctx context.Context, in *crearEntrada) (*crearSalida, error) {
	r, nuevo, err := m.Crear(ctx, in.Body, in.Clave)
	var campo *contract.FieldError
	switch {
	case errors.As(err, &campo):
		return nil, problem.Field("body."+campo.Field, campo.Message)
	case errors.Is(err, ErrOtroPedido):
		return nil, problem.New(http.StatusConflict, ErrOtroPedido.Error())
	case errors.Is(err, ErrMuyGrande):
		return nil, problem.New(http.StatusRequestEntityTooLarge, ErrMuyGrande.Error())
	case err != nil:
		return nil, problem.Failure(m.logger, err)
	}
	out := &crearSalida{Status: http.StatusOK, Location: "/pedidos/" + r.ID, Body: ver(r)}
	if nuevo {
		out.Status = http.StatusCreated
	}
	return out, nil
}

func (m *Module) getPedido(ctx context.Context, in *pedidoEntrada) (*pedidoSalida, error) {
	return m.respuesta(m.Pedido(ctx, in.ID))
}

func (m *Module) postCancelacion(ctx context.Context, in *cancelarEntrada) (*pedidoSalida, error) {
	motivo := MotivoCliente
	if in.Body != nil && in.Body.Motivo != "" {
		motivo = in.Body.Motivo
	}
	if motivo == MotivoSinStock || motivo == MotivoRechazada {
		return nil, problem.Field("body.motivo", "is a reason that only the system gives")
	}
	return m.respuesta(m.Cancelar(ctx, in.ID, motivo))
}

func (m *Module) respuesta(r Registro, err error) (*pedidoSalida, error) {
	switch {
	case errors.Is(err, ErrNoExiste):
		return nil, problem.New(http.StatusNotFound, ErrNoExiste.Error())
	case err != nil:
		return nil, problem.Failure(m.logger, err)
	}
	return &pedidoSalida{Body: ver(r)}, nil
}

func (m *Module) getPedidos(ctx context.Context, in *listaEntrada) (*listaSalida, error) {
	f := Filtro{Cliente: nfc(in.Cliente), Estado: Estado(in.Estado), Limite: in.Limit + 1}
	if in.Cursor != "" {
		var ok bool
		if f.Antes, ok = posicion(in.Cursor); !ok {
			return nil, problem.Field("query.cursor", "is not a cursor of this list")
		}
	}
	registros, err := m.Pedidos(ctx, f)
	if err != nil {
		return nil, problem.Failure(m.logger, err)
	}
	out := &listaSalida{}
	out.Body.Pedidos = []pedidoVista{}
	if len(registros) > in.Limit {
		registros = registros[:in.Limit]
		last := registros[in.Limit-1]
		out.Body.Cursor = cursor(Posicion{last.Creado.UTC(), last.ID})
	}
	for _, r := range registros {
		out.Body.Pedidos = append(out.Body.Pedidos, ver(r))
	}
	return out, nil
}

// cursor is opaque to clients: where the next page starts.
func cursor(p Posicion) string {
	encoded, _ := json.Marshal(p) // cannot fail
	return base64.RawURLEncoding.EncodeToString(encoded)
}

func posicion(cursor string) (p Posicion, ok bool) {
	decoded, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || json.Unmarshal(decoded, &p) != nil {
		return Posicion{}, false
	}
	return p, contract.ValidID(p.ID) && !p.Creado.IsZero()
}
