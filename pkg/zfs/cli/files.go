package cli

import (
	"context"
	"errors"
	"os"
	"syscall"

	"zxfer/pkg/files"
	"zxfer/pkg/zfs"
)

// MountFiles mounts a snapshot, or a filesystem, for this process alone.
func (c *CLI) MountFiles(source string) (*os.File, error) {
	root, err := files.Mount(source)
	if err == nil {
		return root, nil
	}
	e := &zfs.Error{Kind: zfs.Unknown, Op: zfs.OpMount, Subject: source, Detail: err.Error()}
	switch {
	case errors.Is(err, syscall.ENOENT):
		e.Kind, e.Detail = zfs.NotFound, "there is no such filesystem or snapshot"
	case errors.Is(err, syscall.EACCES):
		e.Kind, e.Detail = zfs.KeyMissing, "its key is not loaded"
	case errors.Is(err, syscall.EPERM):
		e.Kind, e.Detail, e.Hint = zfs.Permission, "only root may mount", "log in as root there"
	case errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.ENODEV):
		return nil, files.NotSupported(err)
	case errors.Is(err, syscall.EIO):
		e.Kind = zfs.PoolFault
	}
	return nil, e
}

// LoadKey loads the key of an encryption root from a file of this host.
func (c *CLI) LoadKey(ctx context.Context, root, file string) error {
	return c.change(ctx, zfs.OpLoadKey, root, "load-key", "-L", "file://"+file)
}

// UnloadKey unloads the key of an encryption root.
func (c *CLI) UnloadKey(ctx context.Context, root string) error {
	return c.change(ctx, zfs.OpUnload, root, "unload-key")
}

// RunDirectory is that of systemd's RuntimeDirectory=.
func (c *CLI) RunDirectory() string { return "/run/zxfer" }
