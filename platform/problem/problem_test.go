package problem_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"km0/platform/problem"
)

type thing struct {
	Name  string `json:"name" maxLength:"20"`
	Count int32  `json:"count" minimum:"1" maximum:"100"`
	Big   int64  `json:"big" required:"false"`
	Parts []part `json:"parts,omitempty" required:"false"`
}

type part struct {
	Token string `json:"token" pattern:"^[a-z]+$"`
}

type input struct{ Body thing }
type output struct{ Body thing }

// serve is an API that echoes things, and fails with err if it is not nil.
func serve(t *testing.T, err error) http.Handler {
	t.Helper()
	mux := http.NewServeMux()
	api := problem.NewAPI(mux, "prueba", "1")
	huma.Register(api, huma.Operation{
		OperationID: "post", Method: http.MethodPost, Path: "/things", MaxBodyBytes: problem.MaxBody, BodyReadTimeout: problem.BodyTimeout,
	}, func(_ context.Context, in *input) (*output, error) { return &output{in.Body}, err })
	huma.Register(api, huma.Operation{OperationID: "get", Method: http.MethodGet, Path: "/things/{id}"},
		func(_ context.Context, in *struct {
			ID     string `path:"id"`
			Filter string `query:"filter"`
		}) (*output, error) {
			return &output{thing{Name: in.ID, Count: 1}}, err
		})
	return mux
}

type answer struct {
	Code   int
	Header http.Header
	Text   string
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Errors []struct {
		Location string `json:"location"`
		Message  string `json:"message"`
		Value    any    `json:"value"`
	} `json:"errors"`
}

func send(t *testing.T, h http.Handler, method, path, body string, header ...string) (a answer) {
	t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	req := httptest.NewRequest(method, path, reader)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	a.Text = w.Body.String()
	if w.Header().Get("Content-Type") == "application/problem+json" {
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a), a.Text)
		require.Equal(t, w.Code, a.Status)
	}
	a.Code, a.Header = w.Code, w.Header()
	return a
}

func TestEveryBadBodyIsRefusedAtItsPlaceAndNotRepeated(t *testing.T) {
	t.Parallel()
	api := serve(t, nil)
	const secret = "4111111111111111"
	for name, c := range map[string]struct {
		body, location, message string
	}{
		"no body":               {"", "", ""},
		"not JSON":              {`{"name":"` + secret, "body", "valid JSON"},
		"a comma too many":      {`{"name":"a","count":1,}`, "body", "valid JSON"},
		"something after it":    {`{"name":"a","count":1} ` + secret, "body", "valid JSON"},
		"two values":            {`{"name":"a","count":1}{"name":"b","count":1}`, "body", "valid JSON"},
		"no object":             {`"` + secret + `"`, "body", "object"},
		"null":                  {`null`, "body", "object"},
		"not UTF-8":             {"{\"name\":\"a\xff\",\"count\":1}", "body", "UTF-8"},
		"lone surrogate":        {`{"name":"\ud800","count":1}`, "body.name", "not Unicode"},
		"NUL":                   {`{"name":"a\u0000","count":1}`, "body.name", "NUL"},
		"NUL in a name":         {`{"name":"a","count":1,"\u0000":1}`, "body", "NUL"},
		"a name twice":          {`{"name":"a","count":1,"count":2}`, "body.count", "twice"},
		"a name twice, escaped": {`{"name":"a","count":1,"coun\u0074":2}`, "body.count", "twice"},
		"a name in two cases":   {`{"name":"a","count":1,"COUNT":2}`, "body.COUNT", "unexpected"},
		"an unknown name":       {`{"name":"a","count":1,"other":"` + secret + `"}`, "body.other", "unexpected"},
		"twice further in":      {`{"name":"a","count":1,"parts":[{"token":"a"},{"token":"b","token":"c"}]}`, "body.parts[1].token", "twice"},
		"a fraction":            {`{"name":"a","count":1.5}`, "body.count", "without fraction"},
		"a fraction of nothing": {`{"name":"a","count":1.0}`, "body.count", "without fraction"},
		"an exponent":           {`{"name":"a","count":1e2}`, "body.count", "without fraction"},
		"tiny":                  {`{"name":"a","count":0.000000000000000000000000000001}`, "body.count", "without fraction"},
		"more than 32 bits":     {`{"name":"a","count":2147483648}`, "body.count", "<= 100"},
		"2^63 - 1":              {`{"name":"a","count":9223372036854775807}`, "body.count", "<= 100"},
		"2^63":                  {`{"name":"a","count":9223372036854775808}`, "body.count", "64 bits"},
		"30 digits":             {`{"name":"a","count":1,"big":123456789012345678901234567890}`, "body.big", "64 bits"},
		"an exponent bomb":      {`{"name":"a","count":1e999999999}`, "body.count", "without fraction"},
		"zero":                  {`{"name":"a","count":-0}`, "body.count", ">= 1"},
		"a number for a text":   {`{"name":` + secret + `,"count":1}`, "body.name", "string"},
		"a text for a number":   {`{"name":"a","count":"` + secret + `"}`, "body.count", "integer"},
		"against the pattern":   {`{"name":"a","count":1,"parts":[{"token":"` + secret + `"}]}`, "body.parts[0].token", "match"},
		"too long":              {`{"name":"` + strings.Repeat("á", 21) + `","count":1}`, "body.name", "<= 20"},
		"deep":                  {strings.Repeat(`[`, 33) + strings.Repeat(`]`, 33), "body" + strings.Repeat("[0]", 32), "deeper"},
		"a depth bomb":          {strings.Repeat(`[`, 60_000), "body", "valid JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := send(t, api, http.MethodPost, "/things", c.body, "Content-Type", "application/json")
			require.Equal(t, http.StatusBadRequest, a.Code, a.Text)
			require.NotContains(t, a.Text, secret)
			require.NotContains(t, a.Text, "Go struct")
			if c.location == "" {
				return
			}
			require.Len(t, a.Errors, 1, a.Text)
			require.Equal(t, c.location, a.Errors[0].Location)
			require.Contains(t, a.Errors[0].Message, c.message)
			require.Nil(t, a.Errors[0].Value)
		})
	}
}

func TestWhatIsStrictTakesEveryOtherWayToWriteTheSame(t *testing.T) {
	t.Parallel()
	api := serve(t, nil)
	for _, body := range []string{
		`{"name":"<&>\u00e1","count":7,"big":9007199254740993}`,
		"\t{ \"big\" : 9007199254740993 ,\r\n \"count\":7, \"name\" : \"\\u003c\\u0026>\u00e1\" }\n",
	} {
		a := send(t, api, http.MethodPost, "/things", body, "Content-Type", "application/json; charset=utf-8")
		require.Equal(t, http.StatusOK, a.Code, a.Text)
		require.JSONEq(t, `{"name":"<&>á","count":7,"big":9007199254740993}`, a.Text)
		require.Contains(t, a.Text, "9007199254740993", "no digit changes")
	}
	a := send(t, api, http.MethodPost, "/things", `{"name":"a","count":1,"big":-9223372036854775808}`)
	require.Equal(t, http.StatusOK, a.Code, a.Text)
	require.Contains(t, a.Text, "-9223372036854775808")
}

func TestStatusesThatAreNotAboutAField(t *testing.T) {
	t.Parallel()
	api := serve(t, nil)
	const good = `{"name":"a","count":1}`
	for name, c := range map[string]struct {
		method, path, body, contentType string
		status                          int
	}{
		"another content type":  {"POST", "/things", good, "text/xml", 415},
		"too large":             {"POST", "/things", `{"name":"` + strings.Repeat("a", problem.MaxBody) + `"}`, "application/json", 413},
		"unknown path":          {"GET", "/nothing", "", "", 404},
		"another method":        {"DELETE", "/things", "", "", 405},
		"NUL in the path":       {"GET", "/things/a%00", "", "", 400},
		"no UTF-8 in the path":  {"GET", "/things/%ff", "", "", 400},
		"NUL in the query":      {"GET", "/things/a?filter=%00", "", "", 400},
		"no UTF-8 in the query": {"GET", "/things/a?filter=%ff", "", "", 400},
		"no UTF-8 in its name":  {"GET", "/things/a?%ff=1", "", "", 400},
		"text":                  {"GET", "/things/caf%C3%A9?filter=%F0%9F%8D%85", "", "", 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := send(t, api, c.method, c.path, c.body, "Content-Type", c.contentType)
			require.Equal(t, c.status, a.Code, a.Text)
			if c.status != 200 {
				require.Equal(t, "application/problem+json", a.Header.Get("Content-Type"))
				require.NotEmpty(t, a.Detail)
			}
		})
	}
	require.Equal(t, "POST", send(t, api, "PUT", "/things", "").Header.Get("Allow"))
}

func TestDatabaseAwayIs503WithRetryAfterAndAnythingElseSaysNothing(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	for name, c := range map[string]struct {
		err    error
		status int
	}{
		"shutting down": {&pgconn.PgError{Code: "57P01"}, 503},
		"deadlock":      {&pgconn.PgError{Code: "40P01"}, 503},
		"too slow":      {fmt.Errorf("read: %w", context.DeadlineExceeded), 503},
		"our fault":     {errors.New("relation secreta does not exist"), 500},
	} {
		a := send(t, serve(t, problem.Failure(logger, c.err)), "GET", "/things/a", "")
		require.Equal(t, c.status, a.Code, name)
		require.Equal(t, c.status == 503, a.Header.Get("Retry-After") == "1", name)
		require.NotContains(t, a.Text, "secreta", name)
	}
	require.Contains(t, log.String(), "secreta")
	require.Equal(t, 1, strings.Count(log.String(), "\n"))

	a := send(t, serve(t, errors.New("relation secreta does not exist")), "GET", "/things/a", "")
	require.Equal(t, 500, a.Code)
	require.NotContains(t, a.Text, "secreta")
}

func TestAPIDescribesItselfWithoutForeignScripts(t *testing.T) {
	t.Parallel()
	api := serve(t, nil)
	a := send(t, api, "GET", "/openapi.json", "")
	require.Equal(t, 200, a.Code)
	require.Contains(t, a.Text, `"/things/{id}"`)
	require.Equal(t, 200, send(t, api, "GET", "/openapi.yaml", "").Code)
	require.Equal(t, 404, send(t, api, "GET", "/docs", "").Code)
	require.NotContains(t, send(t, api, "POST", "/things", `{"name":"a","count":1}`).Text, "$schema")
}
