package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// fetch returns the programs of a build, from a cache or from the repository.
func fetch(ctx context.Context, cfg Config, stateDir string, who account, b build) (install, error) {
	sum, ok := b.sums[platform()]
	if !ok {
		return install{}, fmt.Errorf("there is no ready-made PostgreSQL for %s", platform())
	}
	roots := cacheRoots(cfg, stateDir, who)
	for _, root := range roots {
		if i, err := probe(ctx, b.bin(root), who); err == nil {
			return i, nil
		}
	}
	var problems []error
	for _, root := range roots {
		root, err := usableCache(root, who)
		if err != nil {
			cfg.Logger.Warn("cache for the PostgreSQL programs cannot be used", "dir", root, "error", err)
			problems = append(problems, err)
			continue
		}
		return fetchInto(ctx, cfg, root, who, b, sum)
	}
	return install{}, fmt.Errorf("no folder to keep the programs in: %w", errors.Join(problems...))
}

func (b build) bin(root string) string { return filepath.Join(root, b.folder(), "bin") }

// cacheRoots are the folders that may hold fetched programs, preferred one first.
func cacheRoots(cfg Config, stateDir string, who account) []string {
	const name = "postgresql"
	var roots []string
	if cfg.CacheDir != "" {
		roots = append(roots, filepath.Join(cfg.CacheDir, name))
	} else if user, err := os.UserCacheDir(); err == nil && !who.drop {
		roots = append(roots, filepath.Join(user, "km0", name))
	}
	return append(roots, filepath.Join(stateDir, "cache", name))
}

// usableCache makes the folder and tries to write there.
func usableCache(root string, who account) (string, error) {
	dir, err := prepareDir(root, who)
	if err != nil {
		return root, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return root, err
	}
	return dir, f.Close()
}

// fetchInto lets one process at a time fetch; the others find what it brought. A
// process that is killed leaves a temporary folder, which the next one removes.
func fetchInto(ctx context.Context, cfg Config, root string, who account, b build, sum string) (install, error) {
	unlock, err := lockCache(ctx, root)
	if err != nil {
		return install{}, err
	}
	defer unlock()
	if i, err := probe(ctx, b.bin(root), who); err == nil {
		return i, nil
	}
	removeHalves(root)
	temp, err := os.MkdirTemp(root, halfPrefix)
	if err != nil {
		return install{}, fmt.Errorf("create folder for the programs: %w", err)
	}
	defer os.RemoveAll(temp)
	if err := os.Chmod(temp, 0o755); err != nil {
		return install{}, fmt.Errorf("open the folder of the programs: %w", err)
	}

	jar := filepath.Join(temp, "build.jar")
	began := time.Now()
	url := b.url(cfg.from.mirror)
	cfg.Logger.Info("fetching PostgreSQL", "version", b.version, "url", url)
	if err := download(ctx, cfg, url, sum, jar, "PostgreSQL "+b.version); err != nil {
		return install{}, err
	}
	if cfg.Progress != nil { // the bar has ended, and this takes some seconds
		fmt.Fprintf(cfg.Progress, "Unpacking PostgreSQL %s\n", b.version)
	}
	tree := filepath.Join(temp, "tree")
	if err := unpack(ctx, jar, tree); err != nil {
		return install{}, fmt.Errorf("unpack %s: %w", url, err)
	}
	if _, err := probe(ctx, filepath.Join(tree, "bin"), who); err != nil {
		return install{}, fmt.Errorf("the fetched PostgreSQL cannot be used (it is made for systems with glibc): %w", err)
	}
	if err := replace(tree, filepath.Join(root, b.folder())); err != nil {
		return install{}, err
	}
	cfg.Logger.Info("fetched PostgreSQL", "version", b.version, "took", time.Since(began))
	return probe(ctx, b.bin(root), who)
}

// replace renames; what stood in the place did not run, or fetchInto had used it.
func replace(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("remove broken programs: %w", err)
	}
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("put the programs in place: %w", err)
	}
	return nil
}

func lockCache(ctx context.Context, root string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(root, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the cache: %w", err)
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := tryLock(f)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, errLocked) {
			f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for another km0 that fetches PostgreSQL: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

const halfPrefix = ".half-"

func removeHalves(root string) {
	halves, _ := filepath.Glob(filepath.Join(root, halfPrefix+"*")) // a constant pattern below a real path
	for _, half := range halves {
		_ = os.RemoveAll(half) // only disk space is at stake
	}
}
