package embedded

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFolderThatTheServersAccountCannotEnterIsNamed(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("for root only")
	}
	private := filepath.Join(filepath.Dir(stateDir(t)), "private")
	require.NoError(t, os.Mkdir(private, 0o700))
	_, err := Start(t.Context(), Config{Dir: filepath.Join(private, "a", "state")})
	require.ErrorContains(t, err, "cannot enter "+private)
	require.ErrorContains(t, err, "chmod o+x "+private)
	require.NoDirExists(t, filepath.Join(private, "a"), "found before anything was made")
}

func TestFolderOfAnotherUserIsRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("for an ordinary user only")
	}
	dir := stateDir(t)
	require.NoError(t, os.MkdirAll(dir, 0o500))
	_, err := Start(t.Context(), Config{Dir: dir})
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorContains(t, err, "--state")
}

func TestClusterThatBelongsToRootIsRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("for root only")
	}
	dir := stateDir(t)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "postgres"), 0o755))
	_, err := Start(t.Context(), Config{Dir: dir})
	require.ErrorContains(t, err, "chown -R")
}

// layOut makes a cluster folder that belongs to whoever would run the server.
func layOut(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	who, err := chooseAccount("/nonexistent")
	require.NoError(t, err)
	data := filepath.Join(dir, "postgres")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, who.own(data))
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(data, name), []byte(text), 0o600))
		require.NoError(t, who.take(filepath.Join(data, name)))
	}
}

func TestFoldersThatAreNoClusterAreRefusedUntouched(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		files map[string]string
		says  []string
	}{
		{"another major", map[string]string{"PG_VERSION": "9\n", "dato": "x"}, []string{"made by PostgreSQL 9", "install PostgreSQL 9", "not touched"}},
		{"no version", map[string]string{"dato": "x"}, []string{"no PG_VERSION", "nothing was touched"}},
		{"odd version", map[string]string{"PG_VERSION": "\x00\x00", "dato": "x"}, []string{"damaged"}},
	} {
		dir := stateDir(t)
		layOut(t, dir, c.files)
		_, err := Start(t.Context(), Config{Dir: dir})
		for _, text := range c.says {
			require.ErrorContains(t, err, text, c.name)
		}
		for name, want := range c.files {
			got, err := os.ReadFile(filepath.Join(dir, "postgres", name))
			require.NoError(t, err)
			require.Equal(t, want, string(got))
		}
	}
}

func TestFileInPlaceOfAFolderIsNamed(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	require.NoError(t, os.WriteFile(dir, []byte("x"), 0o644))
	_, err := Start(t.Context(), Config{Dir: dir})
	require.ErrorContains(t, err, dir+" is a file")
	_, err = Start(t.Context(), Config{Dir: filepath.Join(dir, "below")})
	require.ErrorContains(t, err, dir+" is a file")

	dir = stateDir(t)
	who, err := chooseAccount("/nonexistent")
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	data := filepath.Join(dir, "postgres")
	require.NoError(t, os.WriteFile(data, []byte("x"), 0o644))
	require.NoError(t, who.take(data))
	_, err = Start(t.Context(), Config{Dir: dir})
	require.ErrorContains(t, err, data+" is a file")
}

func TestDamagedClusterIsReportedWithTheLogAndKept(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	s, err := Start(t.Context(), Config{Dir: dir, Fast: true})
	require.NoError(t, err)
	require.NoError(t, s.Stop(t.Context()))
	control := filepath.Join(s.data, "global", "pg_control")
	require.NoError(t, os.Rename(control, control+".aside"))
	_, err = Start(t.Context(), Config{Dir: dir, Fast: true})
	require.ErrorContains(t, err, "pg_control", "what the log says")
	require.ErrorContains(t, err, "restore a backup")
	require.ErrorContains(t, err, filepath.Join(dir, "postgres.log"))
	require.NoError(t, os.Rename(control+".aside", control))
	started(t, Config{Dir: dir, Fast: true})
}

func TestFullDiskIsReportedAndLeavesNothingHalf(t *testing.T) {
	t.Parallel()
	dir := filepath.Dir(stateDir(t))
	if err := mountSmall(dir, 24<<20); err != nil {
		t.Skip("needs a small file system:", err)
	}
	t.Cleanup(func() { require.NoError(t, unmount(dir)) })
	_, err := Start(t.Context(), Config{Dir: filepath.Join(dir, "state")})
	require.ErrorContains(t, err, "free some disk space")
	require.ErrorContains(t, err, "No space left on device")
	require.NoDirExists(t, filepath.Join(dir, "state", "postgres"))
	require.NoDirExists(t, filepath.Join(dir, "state", "postgres.init"))
}

func TestConfiguredProgramsAreUsedOrRefusedButNeverReplaced(t *testing.T) {
	t.Parallel()
	real := anyProgram(t)
	dir := stateDir(t)
	s := started(t, Config{Dir: dir, BinDir: real.dir, Fast: true})
	require.Equal(t, real.major, query[int](t, s, "SELECT current_setting('server_version_num')::int / 10000"))

	bin := filepath.Join(filepath.Dir(stateDir(t)), "bin")
	_, err := Start(t.Context(), Config{Dir: stateDir(t), BinDir: bin})
	require.ErrorContains(t, err, bin)
	fakeProgram(t, bin, "13.4")
	_, err = Start(t.Context(), Config{Dir: stateDir(t), BinDir: bin})
	require.ErrorContains(t, err, "too old")
	dir = stateDir(t)
	layOut(t, dir, map[string]string{"PG_VERSION": "16\n"})
	_, err = Start(t.Context(), Config{Dir: dir, BinDir: bin})
	require.ErrorContains(t, err, "made by PostgreSQL 16")
}

// fakeProgram only knows its version.
func fakeProgram(t *testing.T, dir, version string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for _, name := range []string{"postgres", "initdb"} {
		text := fmt.Sprintf("#!/bin/sh\necho '%s (PostgreSQL) %s'\n", name, version)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
}

func TestNewestInstalledVersionWinsAndAClusterKeepsItsOwn(t *testing.T) {
	t.Parallel()
	base := filepath.Dir(stateDir(t))
	for _, version := range []string{"13.9", "15.2", "17.1", "17.4", "19beta2"} {
		fakeProgram(t, filepath.Join(base, version, "bin"), version)
	}
	require.NoError(t, os.Mkdir(filepath.Join(base, "path"), 0o755))
	require.NoError(t, os.Symlink(filepath.Join(base, "15.2", "bin", "postgres"), filepath.Join(base, "path", "postgres")))
	who, err := chooseAccount("/nonexistent")
	require.NoError(t, err)
	cfg := Config{from: &sources{path: filepath.Join(base, "path"), patterns: []string{filepath.Join(base, "1[357]*", "bin")}}}
	for major, want := range map[int]string{0: "17.4", 13: "13.9", 15: "15.2", 17: "17.4"} {
		i, err := locate(t.Context(), cfg, base, who, major)
		require.NoError(t, err)
		require.Equal(t, filepath.Join(base, want, "bin"), i.dir)
	}
	i, err := probe(t.Context(), filepath.Join(base, "19beta2", "bin"), who)
	require.NoError(t, err)
	require.Equal(t, 19, i.major)
}

// What root proved above must hold for everybody: the same tests, as nobody.
func TestAllOfThisAsAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("this is the ordinary user")
	}
	base := filepath.Dir(stateDir(t))
	self, err := os.Executable()
	require.NoError(t, err)
	program, err := os.ReadFile(self) // its own folder is private
	require.NoError(t, err)
	test := filepath.Join(base, "embedded.test")
	require.NoError(t, os.WriteFile(test, program, 0o755))
	home := filepath.Join(base, "home")
	nobody := account{uid: 65534, gid: 65534, name: "nobody", drop: true}
	require.NoError(t, nobody.own(home))

	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, test, "-test.v", "-test.run", "StopAnd|Killed|Cache|OfAnotherUser|Socket|FetchedOnce|Concurrent|Touched|ReusedID")
	cmd.Dir = home
	cmd.Env = []string{"HOME=" + home, "TMPDIR=/tmp", "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: nobody.attributes().Credential}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.GreaterOrEqual(t, strings.Count(string(out), "--- PASS"), 11, string(out))
}
