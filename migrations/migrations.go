// Package migrations holds the SQL that builds each database, embedded.
//
// Every module's database gets Plataforma (outbox, inbox, dead letters) and
// then the module's own folder; the bus database gets Bus. Files are goose
// migrations, applied in the order of their number by platform/postgres.
package migrations

import (
	"embed"
	"io/fs"
)

//go:embed plataforma bus pedidos inventario pagos
var files embed.FS

// Plataforma is what every module's database needs: outbox,
// mensajes_procesados and mensajes_muertos.
func Plataforma() fs.FS { return folder("plataforma") }

// Bus is the database of the postgres bus driver.
func Bus() fs.FS { return folder("bus") }

// Pedidos, Inventario and Pagos are the modules' own tables.
func Pedidos() fs.FS    { return folder("pedidos") }
func Inventario() fs.FS { return folder("inventario") }
func Pagos() fs.FS      { return folder("pagos") }

func folder(name string) fs.FS {
	sub, err := fs.Sub(files, name)
	if err != nil {
		panic(err) // a constant name of an embedded folder
	}
	return sub
}
