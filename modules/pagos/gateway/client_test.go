package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"km0/modules/pagos/gateway"
)

// answering is a gateway that answers everything the same.
func answering(t *testing.T, status int, header http.Header, body string) *gateway.Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for name, values := range header {
			w.Header()[name] = values
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	return dial(t, server.URL, ample)
}

func TestAnswersOfUnknownOutcomeAreNotAvailable(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]struct {
		status int
		body   string
	}{
		"500": {500, ""}, "503": {503, "{}"}, "504": {504, "<html>"}, "408": {408, ""}, "425": {425, ""}, "429": {429, ""},
		"202": {202, `{"ref":"R-1","importe_centimos":1250}`}, "204": {204, ""}, "302": {302, ""},
		"nothing":              {200, ""},
		"half":                 {200, `{"ref":"R-1","importe_cent`},
		"a page":               {200, "<html>maintenance</html>"},
		"another object":       {200, `{}`},
		"null":                 {200, `null`},
		"no amount":            {201, `{"ref":"R-1"}`},
		"no ref":               {201, `{"importe_centimos":1250}`},
		"an empty ref":         {201, `{"ref":"","importe_centimos":1250}`},
		"more than it may say": {200, `{"ref":"R-1","importe_centimos":1250}` + strings.Repeat(" ", 1<<20)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := answering(t, answer.status, nil, answer.body)
			_, err := c.Cobrar(t.Context(), cobro("cobro-1"))
			require.ErrorIs(t, err, gateway.ErrNoDisponible)
			// Taken for "nothing had been charged" it would keep the money.
			_, err = c.Anular(t.Context(), "cobro-1")
			require.ErrorIs(t, err, gateway.ErrNoDisponible)
		})
	}
}

func TestRefusalsAreFinal(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]error{
		402: gateway.ErrTarjetaRechazada, 409: gateway.ErrClaveReutilizada, 410: gateway.ErrAnulado,
	} {
		_, err := answering(t, status, nil, "{}").Cobrar(t.Context(), cobro("cobro-1"))
		require.ErrorIs(t, err, want)
		require.NotErrorIs(t, err, gateway.ErrNoDisponible)
	}
	c := cobro("cobro-1")
	body := fmt.Sprintf(`{"title":"Bad Request","detail":"no card %s%s"}`, c.Tarjeta, strings.Repeat("ñ", 500))
	client := answering(t, 400, nil, body)
	for _, call := range []func() error{
		func() error { _, err := client.Cobrar(t.Context(), c); return err },
		func() error { _, err := client.Anular(t.Context(), c.Clave); return err },
		func() error { _, err := client.Resumen(t.Context()); return err },
		func() error { return client.Libro(t.Context(), nil) },
	} {
		err := call()
		var status *gateway.StatusError
		require.ErrorAs(t, err, &status)
		require.NotErrorIs(t, err, gateway.ErrNoDisponible)
		require.Equal(t, 400, status.Status)
		require.Equal(t, "Bad Request", status.Title)
		require.LessOrEqual(t, len(status.Body), 200)
		require.Contains(t, status.Body, "no card")
		require.ErrorContains(t, err, "400 (Bad Request)")
	}
	_, err := client.Cobrar(t.Context(), c)
	require.NotContains(t, err.Error(), c.Tarjeta)

	var status *gateway.StatusError
	_, err = answering(t, 410, nil, "gone").Anular(t.Context(), "cobro-1")
	require.ErrorAs(t, err, &status, "of an annulment 410 is not in the contract")
	require.NotErrorIs(t, err, gateway.ErrAnulado)
}

func TestAReceiptOfAnotherAmountIsFinal(t *testing.T) {
	t.Parallel()
	_, err := answering(t, 200, nil, `{"ref":"R-1","importe_centimos":1}`).Cobrar(t.Context(), cobro("cobro-1"))
	require.ErrorContains(t, err, "1 cents instead of 1250")
	require.NotErrorIs(t, err, gateway.ErrNoDisponible)
}

func TestAKeyThatNoHeaderCarriesIsFinal(t *testing.T) {
	t.Parallel()
	client := dial(t, "http://127.0.0.1:1", time.Second)
	for _, clave := range []string{"", "a\nb", "señal", strings.Repeat("k", 201)} {
		_, err := client.Cobrar(t.Context(), cobro(clave))
		require.ErrorContains(t, err, "visible ASCII")
		require.NotErrorIs(t, err, gateway.ErrNoDisponible)
	}
}

func TestAGatewayThatIsNotThereIsNotAvailable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	client := dial(t, "http://"+l.Addr().String(), ample)
	_, err = client.Cobrar(t.Context(), cobro("cobro-1"))
	require.ErrorIs(t, err, gateway.ErrNoDisponible)
	_, err = client.Anular(t.Context(), "cobro-1")
	require.ErrorIs(t, err, gateway.ErrNoDisponible)
}

// silent accepts calls, says so, and never answers: not at all, or not to the
// end.
func silent(t *testing.T, begin bool) (url string, called chan struct{}) {
	t.Helper()
	called = make(chan struct{}, 1)
	end := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if begin {
			w.WriteHeader(http.StatusOK)
			_, _ = w.Write([]byte(`{"ref":`))
			_ = http.NewResponseController(w).Flush()
		}
		called <- struct{}{}
		<-end
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(end) })
	return server.URL, called
}

func TestTimeoutsAreNotAvailableAndGivingUpIsCanceled(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]bool{"no answer": false, "half an answer": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, _ := silent(t, begin)
			_, err := dial(t, url, 50*time.Millisecond).Cobrar(t.Context(), cobro("cobro-1"))
			require.ErrorIs(t, err, gateway.ErrNoDisponible, "of the client")

			url, _ = silent(t, begin)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err = dial(t, url, time.Minute).Cobrar(ctx, cobro("cobro-1"))
			require.ErrorIs(t, err, gateway.ErrNoDisponible, "of the caller")

			url, called := silent(t, begin)
			giving, giveUp := context.WithCancelCause(t.Context())
			go func() { <-called; giveUp(errors.New("the process stops")) }()
			_, err = dial(t, url, time.Minute).Cobrar(giving, cobro("cobro-1"))
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, gateway.ErrNoDisponible)
		})
	}
}

func TestACardIsNotSentAlongARedirect(t *testing.T) {
	t.Parallel()
	var reached atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reached.Add(1)
		_, _ = w.Write([]byte(`{"ref":"R-1","importe_centimos":1250}`))
	}))
	t.Cleanup(elsewhere.Close)
	client := answering(t, http.StatusTemporaryRedirect, http.Header{"Location": {elsewhere.URL}}, "")
	_, err := client.Cobrar(t.Context(), cobro("cobro-1"))
	require.ErrorIs(t, err, gateway.ErrNoDisponible)
	require.Zero(t, reached.Load())
}

func TestSixtyFourCallersKeepTheirConnections(t *testing.T) {
	t.Parallel()
	const callers = 64
	var (
		opened  atomic.Int64
		mu      sync.Mutex
		arrived int
		gate    = make(chan struct{})
	)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		mine := gate
		if arrived++; arrived%callers == 0 { // all of a round are here before one is answered
			close(gate)
			gate = make(chan struct{})
		}
		mu.Unlock()
		select {
		case <-mine:
			_, _ = w.Write([]byte(`{"ref":"R-1","importe_centimos":1250}`))
		case <-r.Context().Done():
		}
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	client := dial(t, server.URL, 30*time.Second)
	for range 3 {
		errs := make([]error, callers)
		together(callers, func(i int) { _, errs[i] = client.Cobrar(t.Context(), cobro("cobro-1")) })
		require.NoError(t, errors.Join(errs...))
	}
	require.LessOrEqual(t, opened.Load(), int64(callers*3/2), "of %d calls", 3*callers)
}

func TestALedgerThatGoesBackIsAnError(t *testing.T) {
	t.Parallel()
	err := answering(t, 200, nil, `[{"clave":"a"}]`).Libro(t.Context(), func(gateway.Asiento) error { return nil })
	require.ErrorContains(t, err, `"a" came after "a"`)
}

func TestAddressesAndTimeoutsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "gateway:80", "ftp://gateway", "http://", "http://gateway?x=1", "http://gateway#x", "http://ana:secret@[::1"} {
		_, err := gateway.NewClient(url, time.Second)
		require.ErrorContains(t, err, "gateway url")
		require.NotContains(t, err.Error(), "secret")
	}
	for _, timeout := range []time.Duration{0, -1} {
		_, err := gateway.NewClient("http://gateway", timeout)
		require.ErrorContains(t, err, "gateway timeout")
	}
}

func TestAChargeShowsNoCard(t *testing.T) {
	t.Parallel()
	c := cobro("cobro-1")
	var logged bytes.Buffer
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("charge", "cobro", c)
	for _, text := range []string{fmt.Sprint(c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c), fmt.Sprintf("%+v", &c), logged.String()} {
		require.Contains(t, text, "****4242")
		require.NotContains(t, text, c.Tarjeta)
	}
}
