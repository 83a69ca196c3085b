package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxDepth limits the nesting of folders, because each is open during a walk.
const maxDepth = 500

// controlInode is the inode number of .zfs, the folder of snapshots.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/zfs_ctldir.h (ZFSCTL_INO_ROOT)
const controlInode = 0x0000FFFFFFFFFFFF

// entry is a file that a walk visits.
type entry struct {
	path   string // below the root; "." is the root
	folder int    // descriptor of its folder
	name   string // name in its folder
	stat   unix.Stat_t
}

func (e *entry) kind() Type {
	switch e.stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return Regular
	case unix.S_IFDIR:
		return Folder
	case unix.S_IFLNK:
		return Link
	}
	return Special
}

func (e *entry) mode() uint32 { return e.stat.Mode & 0o7777 }

// walker visits files in the order of their paths, each folder before its contents.
type walker struct {
	visit   func(*entry) error
	problem func(p string, err error)
}

// walk visits the files at a clean path below a root.
func (w *walker) walk(ctx context.Context, root *os.File, at string) error {
	parent, err := openBelow(int(root.Fd()), path.Dir(at), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer parent.Close()
	e := &entry{path: at, folder: int(parent.Fd()), name: path.Base(at)}
	if err := unix.Fstatat(e.folder, e.name, &e.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return w.walkEntry(ctx, e, 0)
}

func (w *walker) walkEntry(ctx context.Context, e *entry, depth int) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := w.visit(e); err != nil || e.kind() != Folder {
		return err
	}
	if depth == maxDepth {
		w.problem(e.path, errors.New("its directories are too deeply nested"))
		return nil
	}
	folder, err := openBelow(e.folder, e.name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		w.problem(e.path, err)
		return nil
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	if err != nil && !errors.Is(err, io.EOF) {
		w.problem(e.path, err) // use the names that were read
	}
	slices.Sort(names)
	for _, name := range names {
		in := &entry{path: strings.TrimPrefix(e.path+"/"+name, "./"), folder: int(folder.Fd()), name: name}
		if err := unix.Fstatat(in.folder, name, &in.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			w.problem(in.path, err)
			continue
		}
		if e.path == "." && name == ".zfs" && in.stat.Ino == controlInode {
			continue
		}
		if err := w.walkEntry(ctx, in, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// comparePaths orders paths as in a walk: by folder, "a/b" before "a-b".
func comparePaths(a, b string) int {
	if a == "." || b == "." { // the root is first
		return strings.Compare(strings.TrimPrefix(a, "."), strings.TrimPrefix(b, "."))
	}
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
}

type xattr struct {
	name  string
	value []byte
}

func (x xattr) acl() bool { return strings.HasPrefix(x.name, "system.") }

// readXattrs returns the extended attributes of an open file, sorted by name, or none if the
// filesystem does not support them.
func readXattrs(f *os.File) ([]xattr, error) {
	return listXattrs(func(buf []byte) (int, error) { return unix.Flistxattr(int(f.Fd()), buf) },
		func(name string, buf []byte) (int, error) { return unix.Fgetxattr(int(f.Fd()), name, buf) })
}

// xattrs is readXattrs for a file that is not opened. It follows no link: the last part of the path is
// a name in an open folder.
func (e *entry) xattrs() ([]xattr, error) {
	at := fmt.Sprintf("/proc/self/fd/%d/%s", e.folder, e.name)
	return listXattrs(func(buf []byte) (int, error) { return unix.Llistxattr(at, buf) },
		func(name string, buf []byte) (int, error) { return unix.Lgetxattr(at, name, buf) })
}

func listXattrs(list func([]byte) (int, error), get func(string, []byte) (int, error)) (out []xattr, err error) {
	all, err := readSized(list)
	if err != nil {
		return nil, err
	}
	names := strings.Split(strings.TrimSuffix(string(all), "\x00"), "\x00")
	slices.Sort(names)
	for _, name := range names {
		if name == "" {
			continue
		}
		value, err := readSized(func(buf []byte) (int, error) { return get(name, buf) })
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return out, err
		}
		out = append(out, xattr{name, value})
	}
	return out, nil
}

// ShowsACLs reports whether a mounted filesystem shows the access control lists of its files. OpenZFS
// decides it at the mount, by the property acltype.
func ShowsACLs(root *os.File) bool {
	// Use the path of the descriptor, because a mount's path is opened with O_PATH.
	_, err := unix.Getxattr(fmt.Sprintf("/proc/self/fd/%d", root.Fd()), "system.posix_acl_access", nil)
	return err == nil || errors.Is(err, unix.ENODATA)
}

// readSized calls get for the size, and again with a buffer of that size.
func readSized(get func([]byte) (int, error)) ([]byte, error) {
	n, err := get(nil)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	buf := make([]byte, n)
	n, err = get(buf)
	return buf[:max(n, 0)], err
}
