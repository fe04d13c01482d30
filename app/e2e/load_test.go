package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pedidos "km0/modules/pedidos/contract"
)

// where is the API now; it moves when a process is replaced.
type where struct{ urls atomic.Pointer[[]string] }

func at(processes ...*process) *where {
	w := &where{}
	w.move(processes...)
	return w
}

func (w *where) move(processes ...*process) {
	var urls []string
	for _, p := range processes {
		urls = append(urls, p.api)
	}
	w.urls.Store(&urls)
}

func (w *where) url(i int) string {
	urls := *w.urls.Load()
	return urls[i%len(urls)]
}

var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 32}}

// post repeats a request until it is answered, as a client with an id of its
// own may.
func post(ctx context.Context, w *where, i int, path string, body any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	for try := 0; ; try++ {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url(i+try)+path, bytes.NewReader(encoded))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := client.Do(req)
		if err == nil {
			answer, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if res.StatusCode < 300 {
				return nil
			}
			if res.StatusCode < 500 {
				return fmt.Errorf("POST %s: status %d: %s", path, res.StatusCode, answer)
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// invented is order i: every tenth card is declined, every tenth order wants
// what runs out, every tenth client cancels.
func invented(i int) (p pedidos.Pedido, cancel bool) {
	shelf := []string{"tomate-rosa", "calabacin", "queso-fresco", "vino-crianza"}
	p = pedidos.Pedido{
		ID: fmt.Sprintf("P-2026-%06d", i), Cliente: "ana", Mercado: "girona", Tarjeta: fmt.Sprintf("tok_%d", i),
		Lineas: []pedidos.Linea{
			{Producto: shelf[i%4], Cantidad: int32(1 + i%3), PrecioCentimos: 320},
			{Producto: shelf[(i+1)%4], Cantidad: 1, PrecioCentimos: 1450},
		},
		Direccion: &pedidos.Direccion{Ciudad: "Girona", CodigoPostal: "17001"},
	}
	switch i % 10 {
	case 3:
		p.Tarjeta = fmt.Sprintf("tok_rechazada_%d", i)
	case 5:
		p.Lineas = append(p.Lineas, pedidos.Linea{Producto: "queso-curado", Cantidad: 1, PrecioCentimos: 1450})
	case 7:
		cancel = true
	}
	return p, cancel
}

// load places n orders from some clients at once; wait returns when all are
// confirmed.
func load(t *testing.T, w *where, n int) (wait func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	t.Cleanup(cancel)
	numbers := make(chan int)
	failures := make(chan error, n)
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for i := range numbers {
				order, cancels := invented(i)
				err := post(ctx, w, i, "/pedidos", order)
				if err == nil && cancels {
					err = post(ctx, w, i, "/pedidos/"+order.ID+"/cancelacion", struct{}{})
				}
				if err != nil {
					failures <- fmt.Errorf("order %d: %w", i, err)
				}
			}
		})
	}
	go func() {
		defer close(numbers)
		for i := range n {
			select {
			case numbers <- i:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		t.Helper()
		clients.Wait()
		close(failures)
		require.NoError(t, <-failures)
	}
}

// placing is a steady stream of orders.
type placing struct {
	confirmed atomic.Int32
	end       chan struct{}
	ended     chan struct{}
	placed    int // once ended
	clients   sync.WaitGroup
	failure   atomic.Pointer[error]
}

// steadily places orders at a rate, whatever becomes of the ones before.
func steadily(t *testing.T, w *where, perSecond int) *placing {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	p := &placing{end: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		ticks := time.NewTicker(time.Second / time.Duration(perSecond))
		defer ticks.Stop()
		for ; ; p.placed++ {
			order, _ := invented(p.placed)
			p.clients.Go(func() {
				if err := post(ctx, w, 0, "/pedidos", order); err != nil {
					p.failure.Store(&err)
				}
				p.confirmed.Add(1)
			})
			select {
			case <-ticks.C:
			case <-p.end:
				p.placed++
				return
			case <-ctx.Done():
				p.placed++
				return
			}
		}
	}()
	return p
}

// stop returns how many orders were placed, when all are confirmed.
func (p *placing) stop(t *testing.T) int {
	t.Helper()
	close(p.end)
	<-p.ended
	p.clients.Wait()
	if err := p.failure.Load(); err != nil {
		require.NoError(t, *err)
	}
	return p.placed
}

// estadoAt is the state of an order, "" if there is no answer.
func estadoAt(ctx context.Context, w *where, id string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url(0)+"/pedidos/"+id, nil)
	if err != nil {
		return ""
	}
	res, err := client.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = res.Body.Close() }()
	var view struct{ Estado string }
	if res.StatusCode != http.StatusOK || json.NewDecoder(res.Body).Decode(&view) != nil {
		return ""
	}
	return view.Estado
}
