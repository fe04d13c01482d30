package problem

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth is how deep a body may be nested.
const maxDepth = 32

// unmarshal is json.Unmarshal for bodies from outside. encoding/json guesses
// where a body is unclear, and two readers may guess differently: a key that
// is there twice, bytes that are no UTF-8 and half a surrogate pair are errors
// here. Whole numbers written as 1.0 or 1e2 are taken as what they are.
func unmarshal(data []byte, into any) error {
	clear, err := canonical(data)
	if err != nil {
		return err
	}
	return json.Unmarshal(clear, into)
}

// level is an object or array that is open.
type level struct {
	keys  map[string]struct{} // nil for an array
	key   string
	next  bool // in an object: a key comes next
	index int
}

func canonical(data []byte) ([]byte, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("the body is not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var (
		out    []byte // data up to copied, with its numbers rewritten
		copied int
		open   []*level
	)
	for {
		before := int(dec.InputOffset())
		token, err := dec.Token()
		switch {
		case errors.Is(err, io.EOF):
			return append(out, data[copied:]...), nil // json.Unmarshal says what is wrong with the whole
		case err != nil:
			return nil, err
		}
		after := int(dec.InputOffset())
		switch t := token.(type) {
		case json.Delim:
			if t == '}' || t == ']' {
				open = open[:len(open)-1]
				break
			}
			if len(open) == maxDepth {
				return nil, fmt.Errorf("the body is nested deeper than %d levels", maxDepth)
			}
			l := &level{}
			if t == '{' {
				l.keys, l.next = map[string]struct{}{}, true
			}
			open = append(open, l)
			continue
		case string:
			if halfPair(t, data[before:after]) {
				return nil, fmt.Errorf("%s has half of a surrogate pair", path(open))
			}
			if top := last(open); top != nil && top.next {
				top.key, top.next = t, false
				if _, twice := top.keys[t]; twice {
					return nil, fmt.Errorf("%s is there twice", path(open))
				}
				top.keys[t] = struct{}{}
				continue
			}
		case json.Number:
			if _, err := t.Float64(); err != nil {
				return nil, fmt.Errorf("%s is a number out of every range", path(open))
			}
			out = append(append(out, data[copied:after-len(t)]...), whole(string(t))...)
			copied = after
		}
		if top := last(open); top != nil { // a value is complete
			top.next = top.keys != nil
			top.index++
		}
	}
}

func last(open []*level) *level {
	if len(open) == 0 {
		return nil
	}
	return open[len(open)-1]
}

func path(open []*level) string {
	b := strings.Builder{}
	b.WriteString("body")
	for _, l := range open {
		if l.keys != nil {
			fmt.Fprintf(&b, ".%.80s", l.key)
		} else {
			fmt.Fprintf(&b, "[%d]", l.index)
		}
	}
	return b.String()
}

// halfPair tells whether encoding/json had to put U+FFFD in the place of half
// a surrogate pair.
func halfPair(s string, raw []byte) bool {
	return strings.ContainsRune(s, utf8.RuneError) &&
		!bytes.ContainsRune(raw, utf8.RuneError) && !bytes.Contains(bytes.ToLower(raw), []byte(`\ufffd`))
}

// whole writes a JSON number without fraction and exponent if it has neither
// in truth: json.Unmarshal takes 1.0 and 1e2 for no integers.
func whole(number string) string {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	integer, fraction, point := strings.Cut(mantissa, ".")
	if !point && exponent == "" {
		return number
	}
	shift := 0
	if exponent != "" {
		var err error
		if shift, err = strconv.Atoi(exponent); err != nil {
			return number
		}
	}
	sign := ""
	if strings.HasPrefix(integer, "-") {
		sign, integer = "-", integer[1:]
	}
	digits := strings.TrimLeft(integer+fraction, "0")
	trimmed := strings.TrimRight(digits, "0")
	zeros := shift - len(fraction) + len(digits) - len(trimmed)
	switch {
	case trimmed == "":
		return "0"
	case zeros < 0 || len(trimmed)+zeros > 19: // a fraction, or larger than any integer
		return number
	}
	return sign + trimmed + strings.Repeat("0", zeros)
}
