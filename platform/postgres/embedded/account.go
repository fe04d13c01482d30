package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is who the server runs as.
type account struct {
	uid, gid int
	name     string
	drop     bool // this program is root and must become the account
}

// chooseAccount picks who runs the server of a cluster: this program's own user,
// or, for root, somebody who is not root.
func chooseAccount(data string) (account, error) {
	me := os.Geteuid()
	fi, err := os.Stat(data)
	switch {
	case err == nil:
		return ownerOfCluster(data, fi, me)
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
		return account{}, fmt.Errorf("cannot use the state folder: %w: choose another one with --state", err)
	case me != 0:
		return account{uid: me, gid: os.Getegid()}, nil
	}
	for _, name := range []string{os.Getenv("SUDO_USER"), "postgres", "nobody"} {
		if name == "" {
			continue
		}
		if u, err := user.Lookup(name); err == nil {
			if a, ok := unprivileged(u); ok {
				return a, nil
			}
		}
	}
	return account{}, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody to run it: run km0 as an ordinary user, or add a user postgres")
}

func ownerOfCluster(data string, fi fs.FileInfo, me int) (account, error) {
	uid, gid := ownerOf(fi)
	switch {
	case uid == me && me != 0:
		return account{uid: uid, gid: os.Getegid()}, nil
	case me != 0:
		return account{}, fmt.Errorf("the cluster %s belongs to user id %d, km0 runs as %d: run km0 as its owner or as root, or choose another folder with --state", data, uid, me)
	case uid == 0:
		return account{}, fmt.Errorf("the cluster %s belongs to root, and PostgreSQL does not run as root: give it to an ordinary user (chown -R USER %s)", data, data)
	}
	name := "user id " + strconv.Itoa(uid)
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		name = u.Username
	}
	return account{uid: uid, gid: gid, name: name, drop: true}, nil
}

func unprivileged(u *user.User) (account, bool) {
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	if err1 != nil || err2 != nil || uid == 0 {
		return account{}, false
	}
	return account{uid: uid, gid: gid, name: u.Username, drop: true}, true
}

// prepareDir makes dir and returns its real path. Before it makes anything it
// makes sure that the account will be able to enter.
func prepareDir(dir string, who account) (string, error) {
	there, missing, err := existingPart(dir)
	if err != nil {
		return "", err
	}
	if there, err = filepath.EvalSymlinks(there); err != nil {
		return "", fmt.Errorf("resolve %s: %w", dir, err)
	}
	if err := who.canEnter(there); err != nil {
		return "", err
	}
	for _, name := range missing {
		there = filepath.Join(there, name)
		err := os.Mkdir(there, 0o755)
		if err == nil && who.drop {
			err = os.Chmod(there, 0o755) // whatever root's umask is, the account must get in
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("create folder: %w", err)
		}
	}
	if fi, err := os.Stat(there); err != nil {
		return "", fmt.Errorf("folder %s: %w", there, err)
	} else if !fi.IsDir() {
		return "", fmt.Errorf("%s is a file, not a folder: choose another one", there)
	}
	return there, nil
}

// existingPart splits a path into the folder that is there and the names below it
// that are not, outermost first.
func existingPart(path string) (there string, missing []string, err error) {
	for there = path; ; there = filepath.Dir(there) {
		fi, err := os.Stat(there)
		switch {
		case err == nil && fi.IsDir():
			return there, missing, nil
		case err == nil:
			return "", nil, fmt.Errorf("%s is a file, not a folder: choose another one", there)
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR), there == filepath.Dir(there):
			return "", nil, fmt.Errorf("cannot use the folder %s: %w: choose another one", path, err)
		}
		missing = append([]string{filepath.Base(there)}, missing...)
	}
}

// canEnter checks the folder and every parent of it, by mode bits. It is for root
// only: an ordinary user is stopped by the system itself, with a clear error.
func (a account) canEnter(dir string) error {
	if !a.drop {
		return nil
	}
	for d := dir; ; d = filepath.Dir(d) {
		fi, err := os.Stat(d)
		if err != nil {
			return fmt.Errorf("look at %s: %w", d, err)
		}
		if !a.mayExecute(fi) {
			return fmt.Errorf("PostgreSQL does not run as root, so km0 runs it as %s, who cannot enter %s (%v): choose a folder elsewhere (--state /var/lib/km0), or allow it (chmod o+x %s)", a.name, d, fi.Mode(), d)
		}
		if d == filepath.Dir(d) {
			return nil
		}
	}
}

func (a account) mayExecute(fi fs.FileInfo) bool {
	uid, gid := ownerOf(fi)
	switch {
	case uid == a.uid:
		return fi.Mode()&0o100 != 0
	case gid == a.gid:
		return fi.Mode()&0o010 != 0
	default:
		return fi.Mode()&0o001 != 0
	}
}

// own makes a private folder of the account's.
func (a account) own(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("create folder: %w", err)
	}
	return a.take(dir)
}

func (a account) take(dir string) error {
	if !a.drop {
		return nil
	}
	if err := os.Chown(dir, a.uid, a.gid); err != nil {
		return fmt.Errorf("give folder to %s: %w", a.name, err)
	}
	return nil
}
