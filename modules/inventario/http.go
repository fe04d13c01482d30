package inventario

import (
	"context"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"km0/platform/problem"
)

type stockVista struct {
	Producto string `json:"producto"`
	Unidades int32  `json:"unidades"`
}

type stockSalida struct{ Body []stockVista }

type productoEntrada struct {
	Producto string `path:"producto" maxLength:"64"`
}

type productoSalida struct{ Body stockVista }

// Routes adds the module's routes to api.
func (m *Module) Routes(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "ver-stock", Method: http.MethodGet, Path: "/stock", Summary: "The stock of all products", Errors: []int{503},
	}, m.getStock)
	huma.Register(api, huma.Operation{
		OperationID: "ver-stock-producto", Method: http.MethodGet, Path: "/stock/{producto}", Summary: "The stock of one product",
		Errors: []int{400, 404, 503},
	}, m.getProducto)
}

func (m *Module) getStock(ctx context.Context, _ *struct{}) (*stockSalida, error) {
	lista, err := m.Stock(ctx)
	if err != nil {
		return nil, problem.Failure(m.logger, err)
	}
	out := &stockSalida{Body: []stockVista{}}
	for _, s := range lista {
		out.Body = append(out.Body, stockVista(s))
	}
	return out, nil
}

func (m *Module) getProducto(ctx context.Context, in *productoEntrada) (*productoSalida, error) {
	s, err := m.Producto(ctx, in.Producto)
	switch {
	case errors.Is(err, ErrNoExiste):
		return nil, problem.New(http.StatusNotFound, ErrNoExiste.Error())
	case err != nil:
		return nil, problem.Failure(m.logger, err)
	}
	return &productoSalida{Body: stockVista(s)}, nil
}
