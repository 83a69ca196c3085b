package sshexec

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"zxfer/pkg/filelock"
)

const (
	// socketDirPrefix starts the names of a socketDir.
	socketDirPrefix = "zxfer-ssh-"
	// socketName is the name of ssh's socket in a socketDir.
	socketName = "s"
	// rootRunDir is the parent of root's directories. No other user can change /run.
	rootRunDir = "/run/zxfer"
	// maxLeftovers limits the names that removeLeftovers reads.
	maxLeftovers = 1000
	// dirAttempts limits the names that newSocketDir tries in one parent.
	dirAttempts = 3
)

// socketDir is a new directory that only this user can enter, for the socket of a shared connection. ssh
// neither creates the directory nor checks who created the socket, and its arguments show the path to all
// users. So zxfer creates the directory, checks it, and from then on uses only its descriptor.
type socketDir struct {
	parent, dir *os.File // dir is locked, so that other processes do not remove it
	name        string
}

// newSocketDir returns a new directory in the first usable parent, or nil if there is none. nil means the
// default parents.
func newSocketDir(parents []string) *socketDir {
	// Another process of this user cannot use the descriptors of a process that does not permit it, such as
	// one whose file has capabilities.
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || dumpable != 1 {
		return nil
	}
	if parents == nil {
		parents = socketParents()
	}
	for _, name := range parents {
		parent, err := openParent(name)
		if err != nil {
			continue
		}
		removeLeftovers(parent)
		for range dirAttempts {
			if d, err := makeSocketDir(parent); err == nil {
				return d
			}
		}
		_ = parent.Close()
	}
	return nil
}

// socketParents returns the directories that may hold a socketDir, the preferred one first.
func socketParents() []string {
	parents := []string{os.Getenv("XDG_RUNTIME_DIR"), fmt.Sprintf("/run/user/%d", os.Geteuid())}
	if os.Geteuid() == 0 {
		_ = os.Mkdir(rootRunDir, 0o700) // a service without it has a private /tmp
		parents = []string{rootRunDir}
	}
	return append(parents, os.TempDir())
}

// openParent opens a directory in which no other user can rename or remove a directory of this user.
func openParent(name string) (*os.File, error) {
	if !filepath.IsAbs(name) {
		return nil, os.ErrInvalid
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	st, err := status(f)
	othersWrite := st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0
	if err == nil && (othersWrite || st.Uid != 0 && st.Uid != uint32(os.Geteuid())) {
		err = os.ErrPermission
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// makeSocketDir creates, locks and checks a directory in parent.
func makeSocketDir(parent *os.File) (*socketDir, error) {
	name := socketDirPrefix + rand.Text()[:10]
	if err := unix.Mkdirat(int(parent.Fd()), name, 0o700); err != nil {
		return nil, err
	}
	dir, err := openOwn(parent, name)
	if err != nil {
		return nil, err
	}
	if err := filelock.Try(dir); errors.Is(err, filelock.ErrLocked) { // another process removes it as a leftover
		return nil, errors.Join(err, dir.Close())
	}
	st, err := status(dir)
	if err == nil && (st.Nlink == 0 || st.Mode&0o777 != 0o700) {
		err = os.ErrPermission
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &socketDir{parent, dir, name}, nil
}

// openOwn opens a directory of this user in parent. It does not follow a link.
func openOwn(parent *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	st, err := status(f)
	if err == nil && st.Uid != uint32(os.Geteuid()) {
		err = os.ErrPermission
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func status(f *os.File) (st unix.Stat_t, err error) {
	err = unix.Fstat(int(f.Fd()), &st)
	return st, err
}

// socket returns the path of the socket for ssh. It names the descriptor in this process: ssh closes all that
// it inherits. The kernel lets no other user, except root, follow the path.
func (d *socketDir) socket() string {
	return fmt.Sprintf("/proc/%d/fd/%d/%s", os.Getpid(), d.dir.Fd(), socketName)
}

// hasSocket reports whether ssh created the socket, which it does after the login. Nobody else can.
func (d *socketDir) hasSocket() bool {
	var st unix.Stat_t
	return unix.Fstatat(int(d.dir.Fd()), socketName, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// cleanup returns a line of shell that deletes the directory after zxfer was killed. The shell has the
// directory as descriptor 3 and the parent as 4.
func (d *socketDir) cleanup() string {
	return "rm -f /proc/self/fd/3/*; rmdir /proc/self/fd/4/" + d.name
}

// remove deletes the directory. It may be called more than once.
func (d *socketDir) remove() {
	removeDir(d.parent, d.dir, d.name)
	_ = d.dir.Close()
	_ = d.parent.Close()
}

// removeDir deletes a directory in parent and the sockets in it.
func removeDir(parent, dir *os.File, name string) {
	names, _ := dir.Readdirnames(maxLeftovers)
	for _, n := range names {
		_ = unix.Unlinkat(int(dir.Fd()), n, 0)
	}
	_ = unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR)
}

// removeLeftovers deletes the directories of processes that were killed together with their shells. A living
// process holds the lock of its directory.
func removeLeftovers(parent *os.File) {
	names, _ := parent.Readdirnames(maxLeftovers)
	for _, name := range names {
		if !strings.HasPrefix(name, socketDirPrefix) {
			continue
		}
		dir, err := openOwn(parent, name)
		if err != nil {
			continue
		}
		if filelock.Try(dir) == nil {
			removeDir(parent, dir, name)
		}
		_ = filelock.Close(dir)
	}
}
