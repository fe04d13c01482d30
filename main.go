// Command km0 hosts the modules of Kilómetro Cero. See README.md.
package main

import (
	"os"

	"km0/app"
)

func main() { os.Exit(app.Main(os.Args[1:])) }
