package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"zxfer/pkg/files"
	"zxfer/pkg/zfs"
)

// Mount mounts a filesystem. It ignores a mounted one.
func (c *CLI) Mount(ctx context.Context, dataset string) error {
	return c.setMounted(ctx, dataset, "yes", zfs.OpMount)
}

// Unmount unmounts a filesystem and all mounts below it. It ignores an unmounted one.
func (c *CLI) Unmount(ctx context.Context, dataset string) error {
	return c.setMounted(ctx, dataset, "no", zfs.OpUnmount)
}

func (c *CLI) setMounted(ctx context.Context, dataset, want, op string) error {
	found, err := c.Properties(ctx, []string{dataset}, []string{"mounted"})
	if err != nil || found[dataset]["mounted"].Value == want {
		return err
	}
	return c.change(ctx, op, dataset, op)
}

// MountFiles mounts a snapshot or filesystem for this process alone.
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

// RunDirectory returns the directory that systemd's RuntimeDirectory= creates.
func (c *CLI) RunDirectory() string { return "/run/zxfer" }

// mountedAt returns the mountpoint of a snapshot in any process's namespace, or "".
func mountedAt(snapshot string) string {
	files, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	seen := map[string]bool{}
	for _, file := range files {
		namespace, _ := os.Readlink(filepath.Join(filepath.Dir(file), "ns/mnt"))
		if seen[namespace] && namespace != "" {
			continue
		}
		seen[namespace] = true
		text, _ := os.ReadFile(file) // empty if the process ended
		for _, m := range zfs.ParseMounts(string(text), zfs.PoolOf(snapshot)) {
			if m.Of == snapshot {
				return m.At
			}
		}
	}
	return ""
}

// mountOf returns the mountpoint of a filesystem in a table in the format of proc_pid_mountinfo(5),
// or "".
func mountOf(mountinfo, dataset string) string {
	name := strings.ReplaceAll(dataset, " ", `\040`)
	for line := range strings.Lines(mountinfo) {
		head, tail, _ := strings.Cut(line, " - ")
		kind, at := strings.Fields(tail), strings.Fields(head)
		if len(kind) > 1 && len(at) > 4 && kind[0] == "zfs" && kind[1] == name {
			return at[4]
		}
	}
	return ""
}
