package pagos

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"km0/platform/problem"
)

type pagoVista struct {
	PedidoID      string    `json:"pedido_id"`
	Importe       int64     `json:"importe_centimos"`
	Estado        Estado    `json:"estado" enum:"cobrado,rechazado,devuelto,anulado"`
	Ref           string    `json:"ref_pasarela,omitempty" doc:"The gateway's reference of the charge."`
	RefDevolucion string    `json:"ref_devolucion,omitempty" doc:"The gateway's reference of the refund."`
	Creado        time.Time `json:"creado_en"`
	Actualizado   time.Time `json:"actualizado_en"`
}

type pagoEntrada struct {
	PedidoID string `path:"pedido_id" maxLength:"64"`
}

type pagoSalida struct{ Body pagoVista }

// Routes adds the module's routes to api.
func (m *Module) Routes(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "ver-pago", Method: http.MethodGet, Path: "/pagos/{pedido_id}", Summary: "The payment of an order",
		Errors: []int{400, 404, 503},
	}, m.getPago)
}

func (m *Module) getPago(ctx context.Context, in *pagoEntrada) (*pagoSalida, error) {
	p, err := m.Pago(ctx, in.PedidoID)
	switch {
	case errors.Is(err, ErrNoExiste):
		return nil, problem.New(http.StatusNotFound, ErrNoExiste.Error())
	case err != nil:
		return nil, problem.Failure(m.logger, err)
	}
	p.Creado, p.Actualizado = p.Creado.UTC(), p.Actualizado.UTC()
	return &pagoSalida{Body: pagoVista(p)}, nil
}
