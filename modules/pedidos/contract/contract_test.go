package contract

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func order() Pedido {
	return Pedido{
		ID: "P-2026-000123", Cliente: "ana", Mercado: "girona", Tarjeta: "tok_ana",
		Lineas:    []Linea{{Producto: "queso-curado", Cantidad: 2, PrecioCentimos: 1450}},
		Direccion: &Direccion{Ciudad: "Girona", CodigoPostal: "17001"},
	}
}

func TestEventsOfTheLessonAreValidInBothVersions(t *testing.T) {
	t.Parallel()
	for _, datos := range []string{
		`{"id":"P-2026-000123","cliente":"ana","mercado":"girona","tarjeta":"tok","lineas":[{"producto":"queso-curado","cantidad":2,"precio_centimos":1450}]}`,
		`{"id":"P-2026-000123","cliente":"ana","mercado":"girona","tarjeta":"tok","lineas":[{"producto":"queso-curado","cantidad":2,"precio_centimos":1450}],
		  "direccion_entrega":{"ciudad":"Girona","codigo_postal":"17001"},"campo_nuevo":{"de":"otra version"}}`,
	} {
		var p Pedido
		require.NoError(t, json.Unmarshal([]byte(datos), &p))
		require.NoError(t, p.Validate())
		require.EqualValues(t, 2900, p.Total())
	}
}

func TestEachFaultNamesItsFieldAndNotItsValue(t *testing.T) {
	t.Parallel()
	const secret = "4111111111111111"
	for name, c := range map[string]struct {
		field string
		spoil func(*Pedido)
	}{
		"no id":              {"id", func(p *Pedido) { p.ID = "" }},
		"a line after it":    {"id", func(p *Pedido) { p.ID = "P-1\n" }},
		"no UTF-8":           {"cliente", func(p *Pedido) { p.Cliente = "a\xff" }},
		"a C1 control":       {"cliente", func(p *Pedido) { p.Cliente = "a\u0085" }},
		"no market":          {"mercado", func(p *Pedido) { p.Mercado = "" }},
		"a card":             {"tarjeta", func(p *Pedido) { p.Tarjeta = secret }},
		"a token and a line": {"tarjeta", func(p *Pedido) { p.Tarjeta = secret + "x\n" }},
		"no lines":           {"lineas", func(p *Pedido) { p.Lineas = nil }},
		"the smallest":       {"lineas[0].cantidad", func(p *Pedido) { p.Lineas[0].Cantidad = math.MinInt32 }},
		"the largest": {"lineas[1].precio_centimos", func(p *Pedido) {
			p.Lineas = append(p.Lineas, Linea{Producto: "a", Cantidad: 1, PrecioCentimos: math.MaxInt64})
		}},
		"no product": {"lineas[0].producto", func(p *Pedido) { p.Lineas[0].Producto = "" }},
		"too dear": {"lineas", func(p *Pedido) {
			for range 11 {
				p.Lineas = append(p.Lineas, Linea{Producto: "a", Cantidad: MaxCantidad, PrecioCentimos: MaxPrecioCentimos})
			}
		}},
		"no city": {"direccion_entrega.ciudad", func(p *Pedido) { p.Direccion.Ciudad = "" }},
		"no code": {"direccion_entrega.codigo_postal", func(p *Pedido) { p.Direccion.CodigoPostal = "" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := order()
			c.spoil(&p)
			err := p.Validate()
			var wrong *FieldError
			require.ErrorAs(t, err, &wrong)
			require.Equal(t, c.field, wrong.Field)
			require.NotContains(t, err.Error(), secret)
		})
	}
}

func TestValidOrdersHaveAPositiveTotalTheGatewayTakes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := order()
		p.Lineas = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Linea {
			return Linea{Producto: "a", Cantidad: rapid.Int32().Draw(t, "units"), PrecioCentimos: rapid.Int64().Draw(t, "price")}
		}), 0, 101).Draw(t, "lines")
		if rapid.Bool().Draw(t, "within") {
			for i := range p.Lineas {
				p.Lineas[i].Cantidad = 1 + int32(uint32(p.Lineas[i].Cantidad)%MaxCantidad)
				p.Lineas[i].PrecioCentimos = 1 + int64(uint64(p.Lineas[i].PrecioCentimos)%MaxPrecioCentimos)
			}
		}
		if p.Validate() == nil {
			require.Positive(t, p.Total())
			require.LessOrEqual(t, p.Total(), int64(MaxTotalCentimos))
		}
	})
}

func TestCardNumbersAreRecognisedAndTokensAreNot(t *testing.T) {
	t.Parallel()
	for tarjeta, card := range map[string]bool{
		"4111111111111111": true, "5500005555555559": true, "340000000000009": true, "4222222222222": true, "6304000000000000000": true,
		"4111-1111-1111-1111": true, "4111_1111_1111_1111": true,
		"4111111111111112": false, "411111111111": false, "tok_4111111111111111": false, "0": false, strings.Repeat("-", 20): false,
		strings.Repeat("0", 20): false,
	} {
		p := order()
		p.Tarjeta = tarjeta
		require.Equal(t, card, p.Validate() != nil, tarjeta)
	}
}

func TestOtherEvents(t *testing.T) {
	t.Parallel()
	require.NoError(t, Cancelado{ID: "P-1", Motivo: "otro motivo, de otra version"}.Validate())
	require.Error(t, Cancelado{ID: "P-1 "}.Validate())
	require.NoError(t, Pagado{ID: "P-1", Importe: 1}.Validate())
	require.Error(t, Pagado{ID: "P-1"}.Validate())
	require.Error(t, Pagado{Importe: 1}.Validate())
}
