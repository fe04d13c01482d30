package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	pedidos "km0/modules/pedidos/contract"
	buspg "km0/platform/bus/postgres"
	"km0/platform/envelope"
	"km0/platform/keyed"
)

// place sends the orders, kills the worker half way, and puts malformed
// messages among the events.
func (s *stage) place(ctx context.Context, w *worker, r *Result) error {
	bar := s.bar()
	defer func() { _ = bar.Finish() }()
	var repeats, cancelled atomic.Int64
	random := rand.New(rand.NewPCG(2026, 12)) // the same day every time
	sending, ctx := errgroup.WithContext(ctx)
	sending.SetLimit(64)
	ticker := time.NewTicker(time.Second / time.Duration(s.opts.Rate))
	defer ticker.Stop()
	for i := range s.opts.Orders {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return sending.Wait()
		}
		if i == s.opts.Orders/3 {
			sending.Go(func() (err error) {
				r.Malformed, err = s.malformed(ctx)
				return err
			})
		}
		if i == s.opts.Orders/2 {
			r.WorkerKills++
			sending.Go(func() error {
				w.kill()
				if err := w.start(ctx); err != nil { // or the clients would repeat their requests for ever
					return fmt.Errorf("restart the worker: %w", err)
				}
				return nil
			})
		}
		order, cancel := invent(random, i)
		sending.Go(func() error {
			defer func() { _ = bar.Add(1) }()
			if err := post(ctx, w, "/pedidos", order, &repeats); err != nil || !cancel {
				return err
			}
			cancelled.Add(1)
			return post(ctx, w, "/pedidos/"+order.ID+"/cancelacion", struct{}{}, &repeats)
		})
	}
	err := sending.Wait()
	r.Repeats, r.Cancelled = int(repeats.Load()), int(cancelled.Load())
	return err
}

func (s *stage) bar() *progressbar.ProgressBar {
	var out io.Writer = io.Discard
	if f, ok := s.opts.Progress.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		out = f
	}
	return progressbar.NewOptions(s.opts.Orders, progressbar.OptionSetWriter(out), progressbar.OptionSetDescription("orders"),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionClearOnFinish())
}

// invent makes an order: some want what runs out, some cards are declined, and
// some clients change their mind.
func invent(random *rand.Rand, i int) (p pedidos.Pedido, cancel bool) {
	shelf := []struct {
		producto string
		precio   int64
	}{{"tomate-rosa", 320}, {"calabacin", 210}, {"queso-fresco", 890}, {"vino-crianza", 1250}}
	p = pedidos.Pedido{
		ID: fmt.Sprintf("P-2026-%06d", i+1), Cliente: fmt.Sprintf("cliente-%d", random.IntN(50)), Mercado: "girona",
		Tarjeta: fmt.Sprintf("tok_%08d", random.IntN(1_000_000)), Direccion: &pedidos.Direccion{Ciudad: "Girona", CodigoPostal: "17001"},
	}
	first := random.IntN(len(shelf))
	for n := range 1 + random.IntN(2) {
		from := shelf[(first+n)%len(shelf)]
		p.Lineas = append(p.Lineas, pedidos.Linea{Producto: from.producto, Cantidad: int32(1 + random.IntN(3)), PrecioCentimos: from.precio})
	}
	switch random.IntN(20) {
	case 0:
		p.Tarjeta = fmt.Sprintf("tok_rechazada_%d", i)
	case 1:
		p.Lineas = append(p.Lineas, pedidos.Linea{Producto: "queso-curado", Cantidad: 1, PrecioCentimos: 1450})
	case 2:
		cancel = true
	}
	return p, cancel
}

// post repeats a request until it is answered: with an id of its own, an order
// may be sent as often as needed.
func post(ctx context.Context, w *worker, path string, body any, repeats *atomic.Int64) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url(path), bytes.NewReader(encoded))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := client.Do(req)
		if err == nil {
			answer, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
			_ = res.Body.Close()
			switch {
			case res.StatusCode < 300:
				return nil
			case res.StatusCode < 500:
				return fmt.Errorf("POST %s: status %d: %s", path, res.StatusCode, answer)
			}
		}
		repeats.Add(1)
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// expectedLetters is what malformed leaves: three messages that no consumer of
// the topic can read, and two that only those of pedido.creado reject.
const expectedLetters = 3*4 + 2*2

// malformed publishes what no module would.
func (s *stage) malformed(ctx context.Context) (int, error) {
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	claims := keyed.NewClaims(s.pools.Bus.Config().ConnConfig.Copy(), nil)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = claims.Run(running) }()
	defer func() { cancel(); <-ended }()
	driver, err := buspg.Open(buspg.Config{Pool: s.pools.Bus, Claims: claims})
	if err != nil {
		return 0, err
	}
	defer func() { _ = driver.Close() }()
	event := func(version int, datos string) string {
		e := envelope.Event{ID: watermill.NewUUID(), Tipo: pedidos.PedidoCreado, Version: version, Origen: "nadie", Datos: json.RawMessage(datos)}
		body, _ := e.Encode() // the data are JSON
		return string(body)
	}
	bodies := []string{
		`this is no JSON`, ``, `{"tipo":"pedido.creado"}`,
		event(99, `{"id":"P-1"}`),
		event(2, `{"id":"P-1","cliente":"x","mercado":"y","tarjeta":"tok","lineas":[{"producto":"tomate-rosa","cantidad":-5,"precio_centimos":1}]}`),
	}
	for _, body := range bodies {
		m := message.NewMessage(watermill.NewUUID(), []byte(body))
		if err := driver.Publisher().Publish(pedidos.Topic, m); err != nil {
			return 0, fmt.Errorf("publish a malformed message: %w", err)
		}
	}
	return len(bodies), nil
}
