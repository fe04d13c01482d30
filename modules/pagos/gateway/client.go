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

const (
	maxAnswer = 1 << 20
	// maxIdle keeps a connection for each of that many callers: with
	// net/http's two, the others would dial anew for every charge.
	maxIdle = 128
)

// Client calls a gateway over HTTP. It is safe for concurrent use. It repeats
// nothing itself, except a call on a kept connection that turns out closed.
type Client struct {
	base string
	http *http.Client
}

// NewClient calls the gateway at baseURL, http or https. timeout, above zero,
// limits each call from dialling to the last byte of the answer; an earlier
// deadline of the call's context wins.
func NewClient(baseURL string, timeout time.Duration) (*Client, error) {
	u, err := url.Parse(baseURL)
	switch {
	case err != nil: // without err: it repeats the URL, which may hold a password
		return nil, errors.New("gateway url: unreadable: want http://host:port or https://host")
	case u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("gateway url %q: want http://host:port or https://host, with a path at most", u.Redacted())
	case timeout <= 0:
		return nil, fmt.Errorf("gateway timeout %s: want more than zero, or a call could wait for ever", timeout)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = maxIdle, maxIdle
	transport.MaxResponseHeaderBytes = 64 << 10
	return &Client{
		base: strings.TrimSuffix(u.String(), "/"),
		http: &http.Client{
			Transport: transport, Timeout: timeout,
			// A redirect would carry the card to another place, or turn the
			// charge into a GET whose 200 says nothing.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Close drops idle connections. Calls under way go on.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Cobrar takes the money, once for each key: repeated with the same content it
// returns the first receipt. The errors are ErrTarjetaRechazada, ErrAnulado,
// ErrClaveReutilizada, ErrNoDisponible, a *StatusError for any other refusal,
// and context.Canceled if the caller gave up. After the last two of unknown
// outcome, ErrNoDisponible and context.Canceled, repeat it or annul the key.
func (c *Client) Cobrar(ctx context.Context, cobro Cobro) (Recibo, error) {
	r, err := c.cobrar(ctx, cobro)
	if err != nil {
		return Recibo{}, fmt.Errorf("charge %q: %w", cobro.Clave, err)
	}
	return r, nil
}

func (c *Client) cobrar(ctx context.Context, cobro Cobro) (Recibo, error) {
	if !visible.MatchString(cobro.Clave) { // no header could carry it
		return Recibo{}, errors.New("the key must have 1 to 200 visible ASCII characters")
	}
	req, err := c.post(ctx, "/cobros", cobro)
	if err != nil {
		return Recibo{}, err
	}
	req.Header.Set("Idempotency-Key", cobro.Clave)
	r, err := c.money(req, cobro.Tarjeta)
	var status *StatusError
	if errors.As(err, &status) {
		switch status.Status {
		case http.StatusPaymentRequired:
			return Recibo{}, ErrTarjetaRechazada
		case http.StatusGone:
			return Recibo{}, ErrAnulado
		case http.StatusConflict:
			return Recibo{}, ErrClaveReutilizada
		}
	}
	switch {
	case err != nil:
		return Recibo{}, err
	case r.ref == "":
		return Recibo{}, fmt.Errorf("%w: unreadable answer: no ref", ErrNoDisponible)
	case r.importe != cobro.ImporteCentimos:
		return Recibo{}, fmt.Errorf("the gateway confirmed %d cents instead of %d, ref %q: ask its operator", r.importe, cobro.ImporteCentimos, r.ref)
	}
	return Recibo{Ref: r.ref, ImporteCentimos: r.importe}, nil
}

// Anular gives back what was charged under a key, once, and keeps a charge
// that has not arrived from ever being made. Repeated, it returns the first
// answer. The errors are ErrNoDisponible and context.Canceled (repeat it) and
// *StatusError.
func (c *Client) Anular(ctx context.Context, clave string) (Devolucion, error) {
	d, err := c.anular(ctx, clave)
	if err != nil {
		return Devolucion{}, fmt.Errorf("annul %q: %w", clave, err)
	}
	return d, nil
}

func (c *Client) anular(ctx context.Context, clave string) (Devolucion, error) {
	req, err := c.post(ctx, "/anulaciones", map[string]string{"clave": clave})
	if err != nil {
		return Devolucion{}, err
	}
	// Not sent, but tells net/http that it may repeat the call on a new
	// connection when the kept one was closed meanwhile.
	req.Header["Idempotency-Key"] = []string{}
	m, err := c.money(req, "")
	switch {
	case err != nil:
		return Devolucion{}, err
	case m.importe < 0 || (m.importe > 0) != (m.ref != ""):
		return Devolucion{}, fmt.Errorf("%w: unreadable answer: %d cents with ref %q", ErrNoDisponible, m.importe, m.ref)
	}
	return Devolucion{Ref: m.ref, ImporteCentimos: m.importe}, nil
}

type money struct {
	ref     string
	importe int64
}

// money insists on both fields: the {} of something between us and the gateway
// must not pass for "nothing had been charged".
func (c *Client) money(req *http.Request, secret string) (money, error) {
	var m struct {
		Ref     *string `json:"ref"`
		Importe *int64  `json:"importe_centimos"`
	}
	if err := c.do(req, secret, &m); err != nil {
		return money{}, err
	}
	if m.Ref == nil || m.Importe == nil {
		return money{}, fmt.Errorf("%w: unreadable answer: ref or importe_centimos is missing", ErrNoDisponible)
	}
	return money{*m.Ref, *m.Importe}, nil
}

// Resumen returns the totals of a simulator's ledger.
func (c *Client) Resumen(ctx context.Context) (r Resumen, err error) {
	if err := c.get(ctx, "/libro/resumen", &r); err != nil {
		return Resumen{}, fmt.Errorf("read the gateway's totals: %w", err)
	}
	return r, nil
}

// Libro calls f for each entry of a simulator's ledger, in the order of keys,
// and ends at the first error of f, which it returns. It reads page by page:
// an entry that changes meanwhile is seen as before or as after.
func (c *Client) Libro(ctx context.Context, f func(Asiento) error) error {
	for desde := ""; ; {
		var pagina []Asiento
		if err := c.get(ctx, "/libro?desde="+url.QueryEscape(desde), &pagina); err != nil {
			return fmt.Errorf("read the gateway's ledger after %q: %w", desde, err)
		}
		for _, a := range pagina {
			if a.Clave <= desde {
				return fmt.Errorf("read the gateway's ledger: key %q came after %q", a.Clave, desde)
			}
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

func (c *Client) post(ctx context.Context, path string, body any) (*http.Request, error) {
	encoded, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(encoded))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return req, nil
}

func (c *Client) get(ctx context.Context, path string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return err
	}
	return c.do(req, "", answer)
}

// do classifies what comes back. secret is masked in what an error quotes.
func (c *Client) do(req *http.Request, secret string, answer any) error {
	res, err := c.http.Do(req)
	if err != nil {
		return lost(req.Context(), err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return lost(req.Context(), err)
	case res.StatusCode == http.StatusOK, res.StatusCode == http.StatusCreated:
		if len(body) > maxAnswer {
			return fmt.Errorf("%w: the answer has more than %d bytes", ErrNoDisponible, maxAnswer)
		}
		if err := json.Unmarshal(body, answer); err != nil {
			return fmt.Errorf("%w: unreadable answer: %w", ErrNoDisponible, err)
		}
		return nil
	case res.StatusCode == http.StatusRequestTimeout, res.StatusCode == http.StatusTooEarly, res.StatusCode == http.StatusTooManyRequests:
		return fmt.Errorf("%w: status %d", ErrNoDisponible, res.StatusCode)
	case res.StatusCode >= 400 && res.StatusCode < 500:
		return statusError(res.StatusCode, string(body), secret)
	}
	return fmt.Errorf("%w: status %d", ErrNoDisponible, res.StatusCode)
}

// lost tells a caller that gave up, which is not the gateway's fault, from a
// gateway that cannot be reached.
func lost(ctx context.Context, err error) error {
	if gaveUp := ctx.Err(); errors.Is(gaveUp, context.Canceled) {
		return fmt.Errorf("%w, outcome unknown: %w", gaveUp, err)
	}
	return fmt.Errorf("%w: %w", ErrNoDisponible, err)
}

// StatusError is a refusal (4xx) outside the contract: a repetition will not
// help.
type StatusError struct {
	Status int
	Title  string // of the problem details, if it is one
	Body   string // its first 200 bytes, the card masked
}

func statusError(status int, body, secret string) *StatusError {
	if secret != "" {
		body = strings.ReplaceAll(body, secret, mask(secret))
	}
	e := &StatusError{Status: status, Body: strings.ToValidUTF8(body[:min(len(body), 200)], "")}
	var problem struct {
		Title string `json:"title"`
	}
	if json.Unmarshal([]byte(body), &problem) == nil {
		e.Title = strings.ToValidUTF8(problem.Title[:min(len(problem.Title), 200)], "")
	}
	return e
}

// Error names the status and quotes the answer.
func (e *StatusError) Error() string {
	if e.Title == "" {
		return fmt.Sprintf("the gateway answered status %d: %q", e.Status, e.Body)
	}
	return fmt.Sprintf("the gateway answered status %d (%s): %q", e.Status, e.Title, e.Body)
}
