package files

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"zxfer/pkg/zfs"
)

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
