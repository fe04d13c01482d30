package pedidos

// Query is the statement of a list.
func (f Filtro) Query() (string, []any) { return f.query() }
