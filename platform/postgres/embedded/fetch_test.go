package embedded

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/ulikunitz/xz"
)

type entry struct {
	tar.Header
	text string
}

func file(name, text string) entry {
	return entry{tar.Header{Name: name, Mode: 0o755, Size: int64(len(text)), Typeflag: tar.TypeReg}, text}
}

// jarOf packs entries as the builds of the group are packed.
func jarOf(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var jar bytes.Buffer
	outer := zip.NewWriter(&jar)
	_, err := outer.Create("META-INF/MANIFEST.MF")
	require.NoError(t, err)
	inner, err := outer.Create("postgres-" + platform() + ".txz")
	require.NoError(t, err)
	packed, err := xz.NewWriter(inner)
	require.NoError(t, err)
	archive := tar.NewWriter(packed)
	for _, e := range entries {
		require.NoError(t, archive.WriteHeader(&e.Header))
		_, err := archive.Write([]byte(e.text))
		require.NoError(t, err)
	}
	require.NoError(t, archive.Close())
	require.NoError(t, packed.Close())
	require.NoError(t, outer.Close())
	return jar.Bytes()
}

// programsJar holds programs that hand over to the installed ones.
func programsJar(t *testing.T, real install) []byte {
	t.Helper()
	var entries []entry
	for _, name := range []string{"postgres", "initdb"} {
		entries = append(entries, file("bin/"+name, fmt.Sprintf("#!/bin/sh\nexec '%s' \"$@\"\n", real.program(name))))
	}
	link := entry{Header: tar.Header{Name: "lib/libpq.so", Linkname: "libpq.so.5", Typeflag: tar.TypeSymlink}}
	return jarOf(t, append(entries, file("lib/libpq.so.5", "x"), link)...)
}

// mirror serves jar under the one address that it belongs to, and is the only
// source of programs.
func mirror(t *testing.T, jar []byte, major int, wrap func(http.Handler) http.Handler) *sources {
	t.Helper()
	sum := sha256.Sum256(jar)
	b := build{version: fmt.Sprintf("%d.0.0", major), sums: map[string]string{platform(): hex.EncodeToString(sum[:])}}
	mux := http.NewServeMux()
	mux.HandleFunc(b.url("/maven"), func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(jar))
	})
	var handler http.Handler = mux
	if wrap != nil {
		handler = wrap(mux)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return &sources{builds: []build{b}, mirror: server.URL + "/maven/", stall: 10 * time.Second}
}

func TestMissingProgramsAreFetchedOnce(t *testing.T) {
	t.Parallel()
	real := anyProgram(t)
	var gets atomic.Int32
	from := mirror(t, programsJar(t, real), real.major, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			gets.Add(1)
			next.ServeHTTP(w, r)
		})
	})
	base := filepath.Dir(stateDir(t))
	cache := filepath.Join(base, "cache")
	var bar bytes.Buffer
	var servers [3]*Server
	var errs [3]error
	var wg sync.WaitGroup
	for i := range servers {
		cfg := Config{Dir: filepath.Join(base, fmt.Sprint("state", i)), CacheDir: cache, Fast: true, from: from}
		if i == 0 {
			cfg.Progress = &bar
		}
		wg.Go(func() { servers[i], errs[i] = Start(t.Context(), cfg) })
	}
	wg.Wait()
	for i, s := range servers {
		require.NoError(t, errs[i])
		require.Equal(t, 1, query[int](t, s, "SELECT 1"))
		require.NoError(t, s.Stop(t.Context()))
	}
	require.EqualValues(t, 1, gets.Load(), "three starts at once share one download")
	entries, err := os.ReadDir(filepath.Join(cache, "postgresql"))
	require.NoError(t, err)
	require.Len(t, entries, 2, "the programs and the lock, no temporary folder")

	from.mirror = "http://127.0.0.1:1" // the cache is enough
	started(t, Config{Dir: filepath.Join(base, "state0"), CacheDir: cache, Fast: true, from: from})
}

func TestDownloadDrawsABar(t *testing.T) {
	t.Parallel()
	from := mirror(t, jarOf(t, file("bin/x", strings.Repeat("x", 1000))), 18, nil)
	var bar bytes.Buffer
	cfg := Config{from: from, Progress: &bar}
	b := from.builds[0]
	path := filepath.Join(t.TempDir(), "jar")
	require.NoError(t, download(t.Context(), cfg, b.url(from.mirror), b.sums[platform()], path, "PostgreSQL 18"))
	require.Contains(t, bar.String(), "PostgreSQL 18")
	require.Contains(t, bar.String(), "100%")
}

func TestMirrorOfTheEnvironmentIsAsked(t *testing.T) {
	t.Setenv("KM0_POSTGRES_MIRROR", "https://espejo.example/maven2/")
	require.Contains(t, pinned[0].url(defaultSources().mirror), "https://espejo.example/maven2/io/zonky/test/postgres/embedded-postgres-binaries-")
	t.Setenv("KM0_POSTGRES_MIRROR", "")
	require.Contains(t, pinned[0].url(defaultSources().mirror), "https://repo1.maven.org/maven2/io/zonky/")
}

// unfetchable starts with that source only and returns the error; nothing may be
// left in the cache.
func unfetchable(t *testing.T, from *sources) error {
	t.Helper()
	base := filepath.Dir(stateDir(t))
	cache := filepath.Join(base, "cache")
	_, err := Start(t.Context(), Config{Dir: filepath.Join(base, "state"), CacheDir: cache, from: from})
	require.Error(t, err)
	left, globErr := filepath.Glob(filepath.Join(cache, "postgresql", "*"))
	require.NoError(t, globErr)
	require.LessOrEqual(t, len(left), 1, "only the lock: %v", left)
	return err
}

func TestWrongChecksumIsRefused(t *testing.T) {
	t.Parallel()
	from := mirror(t, jarOf(t, file("bin/postgres", "evil")), 18, nil)
	from.builds[0].sums[platform()] = strings.Repeat("0", 64)
	err := unfetchable(t, from)
	require.ErrorContains(t, err, "wrong checksum")
	require.ErrorContains(t, err, from.mirror)
}

func TestMissingNetworkIsOneClearLine(t *testing.T) {
	t.Parallel()
	from := mirror(t, nil, 18, nil)
	from.mirror = "http://127.0.0.1:1"
	err := unfetchable(t, from)
	for _, text := range []string{"no PostgreSQL of version 14 or newer", "http://127.0.0.1:1/io/zonky", "connection refused", "apt-get install postgresql", "KM0_POSTGRES_BIN", "DSN"} {
		require.ErrorContains(t, err, text)
	}
	require.NotContains(t, err.Error(), "\n")

	from.mirror += "/404"
	from.builds[0].sums = nil
	require.ErrorContains(t, unfetchable(t, from), "no ready-made PostgreSQL for "+platform())
}

func TestRefusedDownloadNamesTheStatus(t *testing.T) {
	t.Parallel()
	from := mirror(t, nil, 18, nil)
	from.mirror += "elsewhere"
	require.ErrorContains(t, unfetchable(t, from), "404")
}

func TestStalledDownloadEnds(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	from := mirror(t, nil, 18, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte("x"))
			_ = http.NewResponseController(w).Flush()
			select {
			case <-release:
			case <-r.Context().Done():
			}
		})
	})
	t.Cleanup(func() { close(release) })
	from.stall = 50 * time.Millisecond
	require.ErrorIs(t, unfetchable(t, from), errStalled)
}

func TestBrokenTransferIsTriedAgain(t *testing.T) {
	t.Parallel()
	jar := jarOf(t, file("bin/x", strings.Repeat("x", 100000)))
	var gets atomic.Int32
	from := mirror(t, jar, 18, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if gets.Add(1) == 1 {
				w.Header().Set("Content-Length", fmt.Sprint(len(jar)))
				_, _ = w.Write(jar[:len(jar)/2])
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	})
	b := from.builds[0]
	path := filepath.Join(t.TempDir(), "jar")
	require.NoError(t, download(t.Context(), Config{from: from}, b.url(from.mirror), b.sums[platform()], path, "x"))
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, jar, got)
	require.EqualValues(t, 2, gets.Load())
}

func TestCancelledDownloadEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	from := mirror(t, nil, 18, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_ = http.NewResponseController(w).Flush()
			cancel()
			<-r.Context().Done()
		})
	})
	err := download(ctx, Config{from: from}, from.builds[0].url(from.mirror), "", filepath.Join(t.TempDir(), "jar"), "x")
	require.ErrorIs(t, err, context.Canceled)
}

func TestCacheThatCannotBeWrittenIsReplacedByTheStateFolder(t *testing.T) {
	t.Parallel()
	real := anyProgram(t)
	from := mirror(t, programsJar(t, real), real.major, nil)
	base := filepath.Dir(stateDir(t))
	cache := filepath.Join(base, "cache")
	if os.Geteuid() == 0 { // root can write anywhere, but its cache may be private
		require.NoError(t, os.Mkdir(cache, 0o700))
	} else {
		require.NoError(t, os.Mkdir(cache, 0o500))
	}
	dir := filepath.Join(base, "state")
	started(t, Config{Dir: dir, CacheDir: cache, Fast: true, from: from})
	require.DirExists(t, filepath.Join(dir, "cache", "postgresql", from.builds[0].folder(), "bin"))
	entries, err := os.ReadDir(cache)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestProgramsThatDoNotRunHereAreNotKept(t *testing.T) {
	t.Parallel()
	from := mirror(t, jarOf(t, file("bin/postgres", "#!/nonexistent\n"), file("bin/initdb", "#!/nonexistent\n")), 18, nil)
	require.ErrorContains(t, unfetchable(t, from), "cannot be used")
}

func TestArchiveCannotReachOutside(t *testing.T) {
	t.Parallel()
	link := func(name, target string, kind byte) entry {
		return entry{Header: tar.Header{Name: name, Linkname: target, Typeflag: kind}}
	}
	for name, entries := range map[string][]entry{
		"parent":                 {file("../evil", "x")},
		"deep parent":            {file("a/../../evil", "x")},
		"absolute":               {file("/evil", "x")},
		"link to parent":         {link("a", "..", tar.TypeSymlink)},
		"absolute link":          {link("a", "/etc", tar.TypeSymlink)},
		"hard link":              {link("a", "../evil", tar.TypeLink)},
		"through a link":         {link("a/b", "..", tar.TypeSymlink), link("c", "a/b/..", tar.TypeSymlink), file("c/evil", "x")},
		"device":                 {link("a", "", tar.TypeChar)},
		"overwrites another one": {file("a", "x"), file("a", "y")},
	} {
		base := t.TempDir()
		jar := filepath.Join(base, "jar")
		require.NoError(t, os.WriteFile(jar, jarOf(t, entries...), 0o600))
		err := unpack(t.Context(), jar, filepath.Join(base, "in", "..", "tree"))
		require.Error(t, err, name)
		require.NoFileExists(t, filepath.Join(base, "evil"), name)
		require.NoFileExists(t, "/evil", name)
	}
}
