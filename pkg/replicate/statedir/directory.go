package statedir

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

// maxLinks is the number of symbolic links that the kernel follows in a path.
const maxLinks = 40

// openDirectory opens a directory. Root writes files into directories below directories of other users,
// who could replace a part of the path with a link to a directory of the system. Therefore it
// follows a symbolic link only if no other user can change it.
func openDirectory(path string) (*os.Root, error) {
	at, err := openPart(unix.AT_FDCWD, start(path))
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(at) }()
	links := 0
	for rest := parts(path); len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		next, err := openPart(at, part)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		target, err := linkTarget(at, next, part)
		if err != nil {
			_ = unix.Close(next)
			return nil, err
		}
		switch {
		case target == "":
			_ = unix.Close(at)
			at = next
			continue
		case links == maxLinks:
			err = unix.ELOOP
		case filepath.IsAbs(target):
			_ = unix.Close(at)
			at, err = openPart(unix.AT_FDCWD, "/")
		}
		_ = unix.Close(next)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		links++
		rest = append(parts(target), rest...)
	}
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", at)) // the open directory, not its name
}

// start returns the directory where a path starts.
func start(path string) string {
	if filepath.IsAbs(path) {
		return "/"
	}
	return "."
}

// parts returns the names in a path.
func parts(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// openPart opens a file or a symbolic link itself.
func openPart(at int, name string) (int, error) {
	return unix.Openat(at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// linkTarget returns the target of an open symbolic link in the directory at, or "" for a directory. It
// returns an error if another user could change the link.
func linkTarget(at, fd int, name string) (string, error) {
	var dir, link unix.Stat_t
	if err := unix.Fstat(fd, &link); err != nil {
		return "", err
	}
	switch link.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "", nil
	case unix.S_IFLNK:
	default:
		return "", fmt.Errorf("%q is not a directory", name)
	}
	if err := unix.Fstat(at, &dir); err != nil {
		return "", err
	}
	if !ours(link.Uid) || !ours(dir.Uid) || dir.Mode&0o002 != 0 || dir.Mode&0o020 != 0 && dir.Gid != 0 && int(dir.Gid) != os.Getegid() {
		return "", fault.Failf("name the directory itself, without a symbolic link", "another user can change the symbolic link %q", name)
	}
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", target)
	if err == nil && n == 0 {
		err = unix.ENOENT
	}
	return string(target[:max(n, 0)]), err
}

// ours reports whether a user is root or the one of this process.
func ours(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }
