package files

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"zxfer/pkg/zfs"
)

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

// Mount mounts a snapshot, or a filesystem in its current state, for this process alone: at no path
// and in no namespace. The mount ends when the returned root and everything opened below it are
// closed. Until then, the snapshot cannot be destroyed, but the dataset can receive.
func Mount(source string) (*os.File, error) {
	alone := MountOptions{Flags: []string{"ro"},
		Attributes: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NOATIME}
	root, err := MountDetached(source, alone)
	if errors.Is(err, unix.EBUSY) {
		// It is mounted read-write. The kernel has one instance, which stays writable. zxfer only
		// reads.
		alone.Flags = nil
		root, err = MountDetached(source, alone)
	}
	return root, err
}

// MountOptions are the options of a mount.
type MountOptions struct {
	Flags      []string          // of the filesystem, such as "ro"
	Text       map[string]string // of the filesystem, by name
	Attributes int               // MOUNT_ATTR_NOSUID and others
}

// MountDetached mounts a ZFS filesystem or snapshot at no path and in no namespace, until the returned root is
// closed or moved to a path.
func MountDetached(source string, o MountOptions) (*os.File, error) {
	config, err := unix.Fsopen("zfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen zfs: %w", err)
	}
	defer unix.Close(config)
	if err := unix.FsconfigSetString(config, "source", source); err != nil {
		return nil, fmt.Errorf("fsconfig source=%s: %w", source, err)
	}
	for _, name := range slices.Sorted(maps.Keys(o.Text)) {
		if err := unix.FsconfigSetString(config, name, o.Text[name]); err != nil {
			return nil, fmt.Errorf("fsconfig %s=%s: %w", name, o.Text[name], err)
		}
	}
	for _, flag := range o.Flags {
		if err := unix.FsconfigSetFlag(config, flag); err != nil {
			return nil, fmt.Errorf("fsconfig %s: %w", flag, err)
		}
	}
	if err := unix.FsconfigCreate(config); err != nil {
		return nil, fmt.Errorf("mounting %s: %w", source, err)
	}
	fd, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, o.Attributes)
	if err != nil {
		return nil, fmt.Errorf("fsmount %s: %w", source, err)
	}
	return os.NewFile(uintptr(fd), source), nil
}

// NotSupported returns the error for a host that lacks the necessary system calls.
func NotSupported(err error) error {
	return &zfs.Error{Kind: zfs.NotSupported, Op: zfs.OpMount, Detail: err.Error(),
		Hint: "use Linux 5.6 or newer, and a container that permits openat2, fsopen and fsmount"}
}

// errLoop is the error for a path through a symbolic link.
var errLoop = errors.New("the path contains a symbolic link, which zxfer does not follow")
