package zfsmem

import (
	"context"
	"os"
	"strings"

	"zxfer/pkg/zfs"
)

// SetFiles assigns a local directory to a snapshot or dataset, as its files.
func (h *Host) SetFiles(name, directory string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.files == nil {
		h.files = map[string]string{}
	}
	h.files[name] = directory
}

// MountFiles opens the directory of a snapshot or dataset. If the key is not loaded, it fails
// like ZFS.
func (h *Host) MountFiles(source string) (*os.File, error) {
	dataset, _, _ := strings.Cut(source, "@")
	h.mu.Lock()
	defer h.mu.Unlock()
	d, directory := h.datasets[dataset], h.files[source]
	switch {
	case d == nil || directory == "":
		return nil, fail(zfs.NotFound, zfs.OpMount, source)
	case d.Get("keystatus") == "unavailable":
		return nil, fail(zfs.KeyMissing, zfs.OpMount, source)
	}
	return os.Open(directory)
}

// LoadKey marks the key of an encryption root as loaded if the key file exists. It ignores the
// contents.
func (h *Host) LoadKey(ctx context.Context, root, file string) error {
	return h.do(ctx, zfs.OpLoadKey, []string{root}, func() error {
		if _, err := os.Stat(file); err != nil {
			return err
		}
		return h.keys(root, "available")
	})
}

// RunDirectory is Run.
func (h *Host) RunDirectory() string { return h.Run }

// UnloadKey marks the key of an encryption root as not loaded.
func (h *Host) UnloadKey(ctx context.Context, root string) error {
	return h.do(ctx, zfs.OpUnload, []string{root}, func() error { return h.keys(root, "unavailable") })
}

// keys sets the key status of all datasets of an encryption root.
func (h *Host) keys(root, state string) error {
	if h.datasets[root] == nil {
		return fail(zfs.NotFound, zfs.OpLoadKey, root)
	}
	for _, d := range h.datasets {
		if d.Get("encryptionroot") == root {
			set(d, "keystatus", state)
		}
	}
	return nil
}
