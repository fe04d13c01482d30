package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"km0/platform/postgres/embedded"
)

func Example() {
	ctx := context.Background()
	server, err := embedded.Start(ctx, embedded.Config{Dir: "/var/lib/km0", Progress: os.Stderr})
	var inUse *embedded.InUseError
	if errors.As(err, &inUse) {
		fmt.Println("already running as", inUse.PID)
		return
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Stop(ctx)
	if err := server.CreateDatabases(ctx, "km0_pedidos", "km0_inventario"); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(server.DSN("km0_pedidos"))
}
