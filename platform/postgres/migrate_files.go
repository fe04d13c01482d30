package postgres

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/pressly/goose/v3"
)

type file struct {
	name          string
	version       int64
	text          string
	noTransaction bool
}

var (
	noTransaction = regexp.MustCompile(`(?im)^--\s*\+goose\s+no\s+transaction`)
	downSection   = regexp.MustCompile(`(?ims)^--\s*\+goose\s+down.*`)
	sqlComment    = regexp.MustCompile(`--[^\n]*`)
	repeatable    = regexp.MustCompile(`(?i)\bIF\s+(NOT\s+)?EXISTS\b`)
)

// readFiles lists the *.sql files at the root of a set, by version.
func readFiles(files fs.FS) ([]file, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, errors.New("no *.sql files at its root")
	}
	known := make([]file, 0, len(names))
	for _, name := range names {
		version, err := goose.NumericComponent(name)
		if err != nil {
			return nil, fmt.Errorf("file %s: the name must begin with a number, as 0001_name.sql: %w", name, err)
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("read migration file: %w", err)
		}
		f := file{name: name, version: version, text: string(text), noTransaction: noTransaction.Match(text)}
		if err := checkRepeatable(f); err != nil {
			return nil, err
		}
		known = append(known, f)
	}
	slices.SortFunc(known, func(a, b file) int { return cmp.Compare(a.version, b.version) })
	return known, nil
}

// checkRepeatable keeps a half-done migration from ever existing: outside a
// transaction nothing undoes the first statement when the second fails, and
// the statement runs again when the process died between it and its version
// record. So such a file holds one statement, with IF [NOT] EXISTS.
func checkRepeatable(f file) error {
	if !f.noTransaction {
		return nil
	}
	up := sqlComment.ReplaceAllString(downSection.ReplaceAllString(f.text, ""), "")
	if strings.Count(up, ";") == 1 && repeatable.MatchString(up) {
		return nil
	}
	return fmt.Errorf("file %s: a NO TRANSACTION migration must be one statement with IF NOT EXISTS or IF EXISTS, "+
		"so that it can be repeated after a crash; split it into several files", f.name)
}
