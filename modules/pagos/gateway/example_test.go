package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"km0/modules/pagos/gateway"
)

// A charge is repeated because its caller does not know what became of it,
// given back, and under another key annulled before it arrives.
func Example() {
	dir, err := os.MkdirTemp("", "gateway")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	simulator, err := gateway.OpenSimulator(filepath.Join(dir, "gateway.db"), gateway.Options{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = simulator.Close() }()
	server := httptest.NewServer(simulator.Handler())
	defer server.Close()
	client, err := gateway.NewClient(server.URL, 10*time.Second)
	if err != nil {
		panic(err)
	}
	defer client.Close()

	ctx := context.Background()
	cobro := gateway.Cobro{Clave: "cobro-A100", PedidoID: "A100", Tarjeta: "tok_ana_4242", ImporteCentimos: 2380}
	first, err := client.Cobrar(ctx, cobro)
	fmt.Println("charged:", first.ImporteCentimos, err)
	again, err := client.Cobrar(ctx, cobro)
	fmt.Println("the same charge:", again == first, err)
	back, err := client.Anular(ctx, cobro.Clave)
	fmt.Println("given back:", back.ImporteCentimos, err)

	nothing, err := client.Anular(ctx, "cobro-A101")
	fmt.Println("given back:", nothing.ImporteCentimos, err)
	cobro.Clave, cobro.PedidoID = "cobro-A101", "A101"
	_, err = client.Cobrar(ctx, cobro)
	fmt.Println("too late:", errors.Is(err, gateway.ErrAnulado))

	totals, err := client.Resumen(ctx)
	fmt.Println("taken and given back:", totals.ImporteCobrado, totals.ImporteDevuelto, err)
	// Output:
	// charged: 2380 <nil>
	// the same charge: true <nil>
	// given back: 2380 <nil>
	// given back: 0 <nil>
	// too late: true
	// taken and given back: 2380 2380 <nil>
}
