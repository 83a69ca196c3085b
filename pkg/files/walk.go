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

	"zxfer/pkg/zfs"
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

// open opens the file for reading. It does not block, even if the file was replaced by a pipe.
func (e *entry) open() (*os.File, error) {
	return openBelow(e.folder, e.name, unix.O_RDONLY|unix.O_NONBLOCK)
}

// target returns the target of a link.
func (e *entry) target() (string, error) {
	buf := make([]byte, max(e.stat.Size+1, 256))
	n, err := unix.Readlinkat(e.folder, e.name, buf)
	return string(buf[:max(n, 0)]), err
}

// openBelow opens a path below a folder. It follows no symbolic links and crosses no mounts.
func openBelow(folder int, name string, flags int) (*os.File, error) {
	how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV}
	for {
		fd, err := unix.Openat2(folder, name, how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), name), nil
		case errors.Is(err, unix.ELOOP):
			return nil, errLoop
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM): // some system call filters return EPERM
			return nil, NotSupported(fmt.Errorf("openat2: %w", err))
		case !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN):
			return nil, err
		}
	}
}

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
		w.problem(e.path, errors.New("the folders above it are too many"))
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

// Mount mounts a snapshot, or a filesystem in its current state, for this process alone: at no path
// and in no namespace. The mount ends when the returned root and everything opened below it are
// closed. Until then, the snapshot cannot be destroyed, but the dataset can receive.
func Mount(source string) (*os.File, error) {
	root, err := mount(source, "ro")
	if errors.Is(err, unix.EBUSY) {
		// It is mounted read-write. The kernel has one instance, which stays writable. zxfer only
		// reads.
		root, err = mount(source)
	}
	return root, err
}

func mount(source string, flags ...string) (*os.File, error) {
	config, err := unix.Fsopen("zfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen zfs: %w", err)
	}
	defer unix.Close(config)
	if err := unix.FsconfigSetString(config, "source", source); err != nil {
		return nil, fmt.Errorf("fsconfig source=%s: %w", source, err)
	}
	for _, flag := range flags {
		if err := unix.FsconfigSetFlag(config, flag); err != nil {
			return nil, fmt.Errorf("fsconfig %s: %w", flag, err)
		}
	}
	if err := unix.FsconfigCreate(config); err != nil {
		return nil, fmt.Errorf("mounting %s: %w", source, err)
	}
	fd, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC,
		unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC|unix.MOUNT_ATTR_NOATIME)
	if err != nil {
		return nil, fmt.Errorf("fsmount %s: %w", source, err)
	}
	return os.NewFile(uintptr(fd), source), nil
}

// NotSupported returns the error for a host that lacks the necessary system calls.
func NotSupported(err error) error {
	return &zfs.Error{Kind: zfs.NotSupported, Op: zfs.OpMount, Detail: err.Error(),
		Hint: "files need Linux 5.6 or newer there, and a container that allows openat2, fsopen and fsmount"}
}

type xattr struct {
	name  string
	value []byte
}

func (x xattr) acl() bool { return strings.HasPrefix(x.name, "system.") }

// readXattrs returns the extended attributes of an open file, sorted by name, or none if the
// filesystem does not support them.
func readXattrs(f *os.File) (out []xattr, err error) {
	list, err := readSized(func(buf []byte) (int, error) { return unix.Flistxattr(int(f.Fd()), buf) })
	if err != nil {
		return nil, err
	}
	names := strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00")
	slices.Sort(names)
	for _, name := range names {
		if name == "" {
			continue
		}
		value, err := readSized(func(buf []byte) (int, error) { return unix.Fgetxattr(int(f.Fd()), name, buf) })
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
