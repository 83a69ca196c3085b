package files

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"zxfer/pkg/zfs"
)

// Mount mounts a snapshot, or a filesystem that is then read as it is now, for
// this process alone: at no path and in no namespace. It is gone when what is
// returned, the root, is closed and all that was opened below it. Meanwhile the
// snapshot cannot be destroyed, and the dataset be received into as ever.
func Mount(source string) (*os.File, error) {
	root, err := mount(source, "ro")
	if errors.Is(err, unix.EBUSY) {
		// It is mounted to be written to: the kernel has one instance, which stays
		// so. Here it is only read.
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

// NotSupported tells of a host on which no file can be read or written as it is here.
func NotSupported(err error) error {
	return &zfs.Error{Kind: zfs.NotSupported, Op: zfs.OpMount, Detail: err.Error(),
		Hint: "files need Linux 5.6 or newer there, and a container that allows openat2, fsopen and fsmount"}
}
