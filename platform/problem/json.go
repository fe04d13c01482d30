package problem

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
)

const (
	// maxDepth is how deep a body may be nested.
	maxDepth = 32
	// split stands in an error of strict between the place below the body and
	// the message: huma passes on the text alone.
	split = "\x00"
)

func refuse(place, message string) error { return fmt.Errorf("%s%s%s", place, split, message) }

// strict is JSON as NewAPI describes it. Where a body is unclear encoding/json
// guesses, and two readers may guess differently.
func strict() huma.Format {
	format := huma.DefaultJSONFormat
	format.Unmarshal = func(data []byte, into any) error {
		if err := check(data); err != nil {
			return err
		}
		return json.Unmarshal(data, into)
	}
	return format
}

func check(data []byte) error {
	switch {
	case !utf8.Valid(data):
		return refuse("", "the body is not UTF-8")
	case !json.Valid(data):
		return refuse("", "the body is not valid JSON")
	}
	w := walker{data: data, dec: json.NewDecoder(bytes.NewReader(data))}
	w.dec.UseNumber()
	return w.value("", 0)
}

// walker goes through a body that is valid JSON.
type walker struct {
	data []byte
	dec  *json.Decoder
}

// next is a token and the bytes it was read from.
func (w *walker) next(place string) (json.Token, []byte, error) {
	from := w.dec.InputOffset()
	token, err := w.dec.Token()
	if err != nil {
		return nil, nil, refuse(place, "the body is not valid JSON")
	}
	return token, w.data[from:w.dec.InputOffset()], nil
}

func (w *walker) value(place string, depth int) error {
	token, raw, err := w.next(place)
	if err != nil {
		return err
	}
	switch t := token.(type) {
	case json.Delim:
		if depth == maxDepth {
			return refuse(place, fmt.Sprintf("nested deeper than %d levels", maxDepth))
		}
		if t == '{' {
			return w.object(place, depth+1)
		}
		return w.array(place, depth+1)
	case string:
		return text(place, t, raw)
	case json.Number:
		return number(place, t.String())
	}
	return nil
}

func (w *walker) object(place string, depth int) error {
	seen := map[string]struct{}{}
	for w.dec.More() {
		token, raw, err := w.next(place)
		if err != nil {
			return err
		}
		name, _ := token.(string)
		if err := text(place, name, raw); err != nil {
			return err
		}
		inside := place + "." + name
		if _, twice := seen[name]; twice {
			return refuse(inside, "the name stands twice")
		}
		seen[name] = struct{}{}
		if err := w.value(inside, depth); err != nil {
			return err
		}
	}
	_, _, err := w.next(place)
	return err
}

func (w *walker) array(place string, depth int) error {
	for i := 0; w.dec.More(); i++ {
		if err := w.value(place+"["+strconv.Itoa(i)+"]", depth); err != nil {
			return err
		}
	}
	_, _, err := w.next(place)
	return err
}

// text refuses what PostgreSQL cannot store, and half a surrogate pair, which
// encoding/json silently turns into U+FFFD.
func text(place, s string, raw []byte) error {
	switch {
	case strings.ContainsRune(s, 0):
		return refuse(place, "the character NUL is not allowed")
	case strings.ContainsRune(s, utf8.RuneError) &&
		!bytes.ContainsRune(raw, utf8.RuneError) && !bytes.Contains(bytes.ToLower(raw), []byte(`\ufffd`)):
		return refuse(place, "half of a surrogate pair is not Unicode")
	}
	return nil
}

func number(place, s string) error {
	if strings.ContainsAny(s, ".eE") {
		return refuse(place, "expected an integer without fraction and exponent")
	}
	if _, err := strconv.ParseInt(s, 10, 64); err != nil {
		return refuse(place, "expected an integer of 64 bits")
	}
	return nil
}

// storable refuses addresses with text that PostgreSQL would refuse.
func storable(api huma.API) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		u := ctx.URL()
		query, err := url.ParseQuery(u.RawQuery)
		good := err == nil && plain(u.Path)
		for name, values := range query {
			good = good && plain(name)
			for _, v := range values {
				good = good && plain(v)
			}
		}
		if !good {
			_ = huma.WriteErr(api, ctx, 400, "the address must be UTF-8 without the character NUL") // the client may be gone
			return
		}
		next(ctx)
	}
}

func plain(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }
