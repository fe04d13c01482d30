package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// origins knows where values came from, so that a mistake can be pointed at.
type origins struct {
	path  string            // of the file
	root  ast.Node          // what it says; nil if there is none
	given map[string]string // by key: the variable or flag that set it
}

// of is the place of a key and a colon, or "" if it has its default.
func (o origins) of(key string) string {
	if by := o.given[key]; by != "" {
		return by + ": "
	}
	if p := find(o.root, segments(key)); p != nil {
		return fmt.Sprintf("%s:%d:%d: ", o.path, p.Line, p.Column)
	}
	return ""
}

// segments splits a key. The names of consumers have dots of their own.
func segments(key string) []string {
	if name, ok := strings.CutPrefix(key, "consumers."); ok {
		return []string{"consumers", name}
	}
	return strings.Split(key, ".")
}

// find is the position of the last of path that the mapping has, or nil.
func find(node ast.Node, path []string) *token.Position {
	mapping, ok := node.(ast.MapNode)
	if !ok || len(path) == 0 {
		return nil
	}
	for entry := mapping.MapRange(); entry.Next(); {
		if entry.Key().GetToken().Value != path[0] {
			continue
		}
		if deeper := find(entry.Value(), path[1:]); deeper != nil {
			return deeper
		}
		return entry.Key().GetToken().Position
	}
	return nil
}

// mistake is what is wrong with the value of a key.
type mistake struct {
	key  string
	text string
}

// locate puts in front of each mistake where it was made.
func (o origins) locate(mistakes []mistake) []error {
	wrong := make([]error, len(mistakes))
	for i, m := range mistakes {
		wrong[i] = fmt.Errorf("%s%s: %s", o.of(m.key), m.key, m.text)
	}
	slices.SortFunc(wrong, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return wrong
}

// nearest is the candidate with the fewest edits from name.
func nearest(name string, candidates []string) string {
	best, distance := "", 1<<30
	for _, c := range candidates {
		if d := edits(name, c); d < distance {
			best, distance = c, d
		}
	}
	return best
}

// edits is the Levenshtein distance.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
