package embedded

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/ulikunitz/xz"
)

// unpack lays the archive within the jar out below dir, which it creates. Nothing
// in the archive can reach a path outside dir: os.Root sees to it.
func unpack(ctx context.Context, jar, dir string) error {
	outer, err := zip.OpenReader(jar)
	if err != nil {
		return err
	}
	defer outer.Close()
	for _, f := range outer.File {
		if !strings.HasSuffix(f.Name, ".txz") {
			continue
		}
		inner, err := f.Open()
		if err != nil {
			return err
		}
		defer inner.Close()
		plain, err := xz.NewReader(bufio.NewReaderSize(inner, 1<<16))
		if err != nil {
			return err
		}
		return untar(ctx, tar.NewReader(plain), dir)
	}
	return errors.New("no .txz archive in it")
}

func untar(ctx context.Context, archive *tar.Reader, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		entry, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return openFolders(dir)
		}
		if err != nil {
			return err
		}
		if err := place(root, entry, archive); err != nil {
			return fmt.Errorf("entry %q: %w", entry.Name, err)
		}
	}
}

func place(root *os.Root, entry *tar.Header, content io.Reader) error {
	name := path.Clean(entry.Name)
	if !filepath.IsLocal(name) {
		return errors.New("leads outside the archive")
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	switch entry.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeReg:
		return placeFile(root, name, entry.FileInfo().Mode(), content)
	case tar.TypeSymlink:
		if !filepath.IsLocal(path.Join(path.Dir(name), entry.Linkname)) || path.IsAbs(entry.Linkname) {
			return fmt.Errorf("links to %q, outside the archive", entry.Linkname)
		}
		return root.Symlink(entry.Linkname, name)
	case tar.TypeLink:
		return root.Link(path.Clean(entry.Linkname), name)
	default:
		return fmt.Errorf("has the unexpected type %q", entry.Typeflag)
	}
}

// placeFile syncs: a program cut short by a loss of power would look complete.
func placeFile(root *os.Root, name string, mode os.FileMode, content io.Reader) error {
	perm := os.FileMode(0o644)
	if mode&0o111 != 0 {
		perm = 0o755
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, content); err != nil {
		return err
	}
	// Whatever the umask is, the account that runs the server must read it.
	if err := f.Chmod(perm); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

// openFolders undoes what a strict umask did to the folders.
func openFolders(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return os.Chmod(path, 0o755)
	})
}
