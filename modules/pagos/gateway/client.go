package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const maxAnswer = 1 << 20

// Client calls a gateway over HTTP. It is safe for concurrent use.
type Client struct {
	base string
	http *http.Client
}

// NewClient calls the gateway at baseURL; timeout limits each call.
func NewClient(baseURL string, timeout time.Duration) (*Client, error) {
	u, err := url.Parse(baseURL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("gateway url %q: want http://host:port or https://host", baseURL)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 128
	transport.MaxIdleConns = 128
	return &Client{
		base: strings.TrimSuffix(baseURL, "/"),
		http: &http.Client{Transport: transport, Timeout: timeout},
	}, nil
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Cobrar charges; repeating it with the same content is safe.
func (c *Client) Cobrar(ctx context.Context, cobro Cobro) (Recibo, error) {
	var r Recibo
	err := c.post(ctx, "/cobros", cobro.Clave, cobro, &r)
	if err != nil {
		return Recibo{}, fmt.Errorf("charge %s: %w", cobro.Clave, err)
	}
	if r.ImporteCentimos != cobro.ImporteCentimos || r.Ref == "" {
		return Recibo{}, fmt.Errorf("charge %s: the gateway confirmed %d cents of %d, ref %q", cobro.Clave, r.ImporteCentimos, cobro.ImporteCentimos, r.Ref)
	}
	return r, nil
}

// Anular gives back what was charged under a key, once, and keeps a charge
// that has not arrived from being made.
func (c *Client) Anular(ctx context.Context, clave string) (Devolucion, error) {
	var d Devolucion
	if err := c.post(ctx, "/anulaciones", "", map[string]string{"clave": clave}, &d); err != nil {
		return Devolucion{}, fmt.Errorf("annul %s: %w", clave, err)
	}
	return d, nil
}

// Resumen returns the totals of a simulator's ledger.
func (c *Client) Resumen(ctx context.Context) (r Resumen, err error) {
	if err := c.get(ctx, "/libro/resumen", &r); err != nil {
		return Resumen{}, fmt.Errorf("read the gateway's totals: %w", err)
	}
	return r, nil
}

// Libro calls f for each entry of a simulator's ledger, in the order of keys.
func (c *Client) Libro(ctx context.Context, f func(Asiento) error) error {
	for desde := ""; ; {
		var pagina []Asiento
		if err := c.get(ctx, "/libro?desde="+url.QueryEscape(desde), &pagina); err != nil {
			return fmt.Errorf("read the gateway's ledger: %w", err)
		}
		for _, a := range pagina {
			if err := f(a); err != nil {
				return err
			}
			desde = a.Clave
		}
		if len(pagina) == 0 {
			return nil
		}
	}
}

func (c *Client) post(ctx context.Context, path, clave string, body, answer any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(encoded))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if clave != "" {
		req.Header.Set("Idempotency-Key", clave)
	}
	return c.do(req, answer)
}

func (c *Client) get(ctx context.Context, path string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return err
	}
	return c.do(req, answer)
}

func (c *Client) do(req *http.Request, answer any) error {
	res, err := c.http.Do(req)
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return err
		}
		return fmt.Errorf("%w: %w", ErrNoDisponible, err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%w: read the answer: %w", ErrNoDisponible, err)
	}
	switch {
	case res.StatusCode == http.StatusOK, res.StatusCode == http.StatusCreated:
		if err := json.Unmarshal(body, answer); err != nil {
			return fmt.Errorf("%w: unreadable answer: %w", ErrNoDisponible, err)
		}
		return nil
	case res.StatusCode == http.StatusPaymentRequired:
		return ErrTarjetaRechazada
	case res.StatusCode == http.StatusGone:
		return ErrAnulado
	case res.StatusCode == http.StatusConflict:
		return ErrClaveReutilizada
	case res.StatusCode >= 500, res.StatusCode == http.StatusTooManyRequests, res.StatusCode == http.StatusRequestTimeout:
		return fmt.Errorf("%w: status %d", ErrNoDisponible, res.StatusCode)
	}
	return &StatusError{Status: res.StatusCode, Body: string(body[:min(len(body), 200)])}
}

// StatusError is an answer outside the contract: repeating will not help.
type StatusError struct {
	Status int
	Body   string // its first 200 bytes
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("the gateway answered status %d: %q", e.Status, e.Body)
}
