package embedded

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// oldest is the first major version that the project is tested with.
const oldest = 14

// sources are the places that server programs come from.
type sources struct {
	path     string   // list of folders, as in PATH
	patterns []string // folders of the usual packages
	builds   []build  // what may be fetched, preferred one first
	mirror   string   // base URL of the Maven repository
	stall    time.Duration
}

func defaultSources() *sources {
	mirror := os.Getenv("KM0_POSTGRES_MIRROR")
	if mirror == "" {
		mirror = "https://repo1.maven.org/maven2"
	}
	return &sources{
		path: os.Getenv("PATH"),
		patterns: []string{
			"/usr/lib/postgresql/*/bin", // Debian
			"/usr/pgsql-*/bin",          // RHEL, from postgresql.org
			"/usr/local/pgsql/bin",      // make install
			"/opt/homebrew/opt/postgresql*/bin",
			"/usr/local/opt/postgresql*/bin",
			"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
			"/Applications/Postgres.app/Contents/Versions/*/bin",
			"/usr/libexec/postgresql*", // Alpine
		},
		builds: pinned,
		mirror: mirror,
		stall:  30 * time.Second,
	}
}

// install is a folder of server programs that run here.
type install struct {
	dir          string
	major, minor int
}

func (i install) String() string { return fmt.Sprintf("%d.%d in %s", i.major, i.minor, i.dir) }

func (i install) program(name string) string { return filepath.Join(i.dir, name) }

// locate finds the programs for a cluster of that major version, or the newest
// ones for a new cluster (major 0); it fetches them when there are none.
func locate(ctx context.Context, cfg Config, stateDir string, who account, major int) (install, error) {
	if cfg.BinDir != "" {
		return given(ctx, cfg.BinDir, stateDir, who, major)
	}
	found := cfg.from.installed(ctx, who)
	for _, i := range found {
		if i.major == major || (major == 0 && i.major >= oldest) {
			return i, nil
		}
	}
	for _, b := range cfg.from.builds {
		if major == 0 || b.major() == major {
			i, err := fetch(ctx, cfg, stateDir, who, b)
			if err != nil {
				err = fmt.Errorf("no PostgreSQL of version %s on this machine (looked in PATH, pg_config and the usual folders), and fetching one failed: %w: "+
					"install it with the package manager (apt-get install postgresql, brew install postgresql), "+
					"or set KM0_POSTGRES_BIN to a folder with postgres and initdb, or configure the DSN of a running server", wanted(major), err)
			}
			return i, err
		}
	}
	return install{}, fmt.Errorf("the cluster in %s was made by PostgreSQL %d, found: %s: install PostgreSQL %d, or set KM0_POSTGRES_BIN to its programs; the cluster was not touched",
		stateDir, major, names(found), major)
}

func wanted(major int) string {
	if major == 0 {
		return fmt.Sprintf("%d or newer", oldest)
	}
	return strconv.Itoa(major)
}

func names(found []install) string {
	if len(found) == 0 {
		return "none"
	}
	var texts []string
	for _, i := range found {
		texts = append(texts, i.String())
	}
	return strings.Join(texts, ", ")
}

// given uses the folder that the configuration names, and no other.
func given(ctx context.Context, dir, stateDir string, who account, major int) (install, error) {
	i, err := probe(ctx, dir, who)
	switch {
	case err != nil:
		return i, fmt.Errorf("the configured PostgreSQL programs cannot be used: %w", err)
	case major == 0 && i.major < oldest:
		return i, fmt.Errorf("the configured PostgreSQL is %v, too old: use version %d or newer", i, oldest)
	case major != 0 && i.major != major:
		return i, fmt.Errorf("the cluster in %s was made by PostgreSQL %d, the configured programs are %v: configure those of version %d; the cluster was not touched", stateDir, major, i, major)
	}
	return i, nil
}

// installed are the programs that run here, newest first; of equals, the one that
// PATH names.
func (s *sources) installed(ctx context.Context, who account) []install {
	var found []install
	var seen []string
	for _, dir := range s.candidates(ctx, who) {
		if slices.Contains(seen, dir) {
			continue
		}
		seen = append(seen, dir)
		if i, err := probe(ctx, dir, who); err == nil {
			found = append(found, i)
		}
	}
	slices.SortStableFunc(found, func(a, b install) int {
		if a.major != b.major {
			return b.major - a.major
		}
		return b.minor - a.minor
	})
	return found
}

func (s *sources) candidates(ctx context.Context, who account) []string {
	var dirs []string
	for _, dir := range filepath.SplitList(s.path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		if real, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres")); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
		if config := filepath.Join(dir, "pg_config"); executable(config) {
			if out, err := who.output(exec.CommandContext(ctx, config, "--bindir")); err == nil {
				dirs = append(dirs, resolved(out))
			}
		}
	}
	for _, pattern := range s.patterns {
		matches, _ := filepath.Glob(pattern) // the patterns are constants
		for _, dir := range matches {
			dirs = append(dirs, resolved(dir))
		}
	}
	return dirs
}

func resolved(dir string) string {
	if real, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres")); err == nil {
		return filepath.Dir(real)
	}
	return dir
}

func executable(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0
}

var versionText = regexp.MustCompile(`^postgres \(PostgreSQL\) (\d+)(?:\.(\d+))?`)

// probe runs the server program as the account that will run it.
func probe(ctx context.Context, dir string, who account) (install, error) {
	i := install{dir: dir}
	for _, name := range []string{"postgres", "initdb"} {
		if !executable(i.program(name)) {
			return i, fmt.Errorf("%s is missing or not executable", i.program(name))
		}
	}
	if err := who.canEnter(dir); err != nil {
		return i, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := who.output(exec.CommandContext(ctx, i.program("postgres"), "--version"))
	if err != nil {
		return i, fmt.Errorf("%s does not run here: %w", i.program("postgres"), err)
	}
	parts := versionText.FindStringSubmatch(out)
	if parts == nil {
		return i, fmt.Errorf("%s is not PostgreSQL: it calls itself %q", i.program("postgres"), out)
	}
	i.major, _ = strconv.Atoi(parts[1]) // digits, says the pattern
	i.minor, _ = strconv.Atoi(parts[2]) // or nothing: a beta, older than every release
	return i, nil
}
