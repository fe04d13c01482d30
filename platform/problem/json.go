package problem

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
)

const (
	maxDepth = 32 // of nested arrays and objects
	// split stands in the text of an error between where and what: huma passes
	// on the text alone. No path contains it.
	split = "\x00"
)

// strict is huma's JSON format for requests without what encoding/json lets
// pass and others read differently: two values for one name, text that is no
// Unicode, NUL, anything after the value. Numbers are integers of 64 bits,
// written without fraction and exponent: 1.0 and 1e2 are refused, and nothing
// passes through a float.
func strict() huma.Format {
	return huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: unmarshal}
}

// unmarshal is called twice: for the tree that huma validates, and for the
// input's own type if the tree was found valid.
func unmarshal(data []byte, v any) error {
	tree, ok := v.(*any)
	if !ok {
		if err := json.Unmarshal(data, v); err != nil {
			return errors.New("does not have the documented form") // err repeats values
		}
		return nil
	}
	parsed, err := parse(data)
	if err != nil {
		return err
	}
	*tree = parsed
	return nil
}

func parse(data []byte) (any, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("is not valid UTF-8")
	}
	p := parser{dec: json.NewDecoder(bytes.NewReader(data))}
	p.dec.UseNumber()
	v, err := p.value("", 0)
	var located *locatedError
	switch {
	case errors.As(err, &located):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("is not valid JSON near byte %d", p.dec.InputOffset())
	}
	if _, err := p.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("has something after the JSON value, near byte %d", p.dec.InputOffset())
	}
	return v, nil
}

type parser struct{ dec *json.Decoder }

// value reads one value; path is where it stands below the body.
func (p parser) value(path string, depth int) (any, error) {
	token, err := p.dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		if depth == maxDepth {
			return nil, at(path, fmt.Sprintf("is nested deeper than %d levels", maxDepth))
		}
		if t == '[' {
			return p.array(path, depth+1)
		}
		return p.object(path, depth+1)
	case json.Number:
		return integer(path, t.String())
	case string:
		return t, text(path, t)
	}
	return token, nil // true, false, null
}

func (p parser) array(path string, depth int) (any, error) {
	list := []any{}
	for p.dec.More() {
		v, err := p.value(fmt.Sprintf("%s[%d]", path, len(list)), depth)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	_, err := p.dec.Token()
	return list, err
}

func (p parser) object(path string, depth int) (any, error) {
	fields := map[string]any{}
	for p.dec.More() {
		token, err := p.dec.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string)
		if err := text(path, name); err != nil {
			return nil, err
		}
		field := path + "." + name
		if _, twice := fields[name]; twice {
			return nil, at(field, "is there twice")
		}
		if fields[name], err = p.value(field, depth); err != nil {
			return nil, err
		}
	}
	_, err := p.dec.Token()
	return fields, err
}

func integer(path, literal string) (any, error) {
	n, err := strconv.ParseInt(literal, 10, 64)
	switch {
	case err == nil:
		return n, nil
	case strings.ContainsAny(literal, ".eE"):
		return nil, at(path, "expected an integer without fraction and exponent")
	}
	return nil, at(path, "expected an integer of at most 64 bits")
}

// text refuses what was lost before it came here, and what PostgreSQL cannot
// store.
func text(path, s string) error {
	switch {
	case strings.ContainsRune(s, utf8.RuneError): // also what a lone surrogate becomes
		return at(path, "has text that is not Unicode (lone surrogate or U+FFFD)")
	case strings.IndexByte(s, 0) >= 0:
		return at(path, "has a NUL character")
	}
	return nil
}

// locatedError is a fault at a path below the body.
type locatedError struct{ path, message string }

func at(path, message string) error { return &locatedError{path, message} }

func (e *locatedError) Error() string { return e.path + split + e.message }

// storable is a middleware that refuses what could reach a database through
// the address and is no text there.
func storable(api huma.API) func(huma.Context, func(huma.Context)) {
	good := func(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }
	return func(ctx huma.Context, next func(huma.Context)) {
		u := ctx.URL()
		var location string
		if !good(u.Path) {
			location = "path"
		}
		for name, values := range u.Query() {
			if location == "" && (!good(name) || slices.ContainsFunc(values, func(v string) bool { return !good(v) })) {
				location = "query"
				if good(name) {
					location += "." + name
				}
			}
		}
		if location == "" {
			next(ctx)
			return
		}
		_ = huma.WriteErr(api, ctx, 400, "validation failed",
			&huma.ErrorDetail{Location: location, Message: "is not UTF-8 text without NUL"}) // the client may be gone
	}
}
