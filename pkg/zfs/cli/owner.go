package cli

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// SetProperties changes properties of a dataset.
func (c *CLI) SetProperties(ctx context.Context, a zfs.PropertyChange) error {
	if _, err := zfs.ParseDataset(a.Dataset); err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(a.Set))
	for _, name := range slices.Concat(names, a.Revert) {
		if err := zfs.CheckProperty(name); err != nil {
			return err
		}
	}
	if len(names) > 0 {
		args := []string{"set"}
		for _, name := range names {
			if err := zfs.CheckValue(name, a.Set[name]); err != nil {
				return err
			}
			args = append(args, name+"="+a.Set[name])
		}
		if _, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpSet, Subject: a.Dataset, Properties: names}, append(args, a.Dataset)); err != nil {
			return err
		}
	}
	for _, name := range a.Revert {
		args := []string{"inherit", name, a.Dataset}
		if !zfs.UserProperty(name) {
			args = slices.Insert(args, 1, "-S") // without it canmount, which nothing inherits, would be refused
		}
		if _, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpInherit, Subject: a.Dataset, Properties: []string{name}}, args); err != nil {
			return err
		}
	}
	return nil
}

// Mount mounts a filesystem where it is not mounted.
func (c *CLI) Mount(ctx context.Context, dataset string) error {
	return c.unlessMounted(ctx, dataset, "yes", zfs.OpMount)
}

// Unmount unmounts a filesystem, and what is mounted below it, where it is mounted.
func (c *CLI) Unmount(ctx context.Context, dataset string) error {
	return c.unlessMounted(ctx, dataset, "no", zfs.OpUnmount)
}

func (c *CLI) unlessMounted(ctx context.Context, dataset, is, op string) error {
	found, err := c.Properties(ctx, []string{dataset}, []string{"mounted"})
	if err != nil || found[dataset]["mounted"].Value == is {
		return err
	}
	return c.change(ctx, op, dataset, op)
}

// InheritKey has a dataset take its key from above, which zfs(8) does with both
// keys loaded only.
func (c *CLI) InheritKey(ctx context.Context, dataset string) error {
	return c.change(ctx, zfs.OpKey, dataset, "change-key", "-i")
}

// MakeEncryptionRoot is not for zfs(8), which makes an encryption root with a new key only.
func (c *CLI) MakeEncryptionRoot(_ context.Context, dataset string) error {
	return &zfs.Error{Kind: zfs.NotSupported, Op: zfs.OpKey, Subject: dataset,
		Detail: "to make it an encryption root as it is takes libzfs_core", Hint: "apt install python3-pyzfs, there"}
}

// InUse returns what a filesystem that is mounted on a directory would hide, and which
// programs have a device open. A volume is found by what the kernel says of its devices, if
// it has no link in /dev/zvol. If it cannot be found, it counts as occupied.
func (c *CLI) InUse(ctx context.Context, paths []string) (map[string]string, error) {
	return usageOf(ctx, paths, kernelVolumes())
}

func usageOf(ctx context.Context, paths []string, v *volumes) (map[string]string, error) {
	out, devices := map[string]string{}, map[string]string{}
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			return nil, fault.Usagef("", "%q is no absolute path", path)
		}
		nodes := []string{}
		real, err := filepath.EvalSymlinks(path)
		if info, _ := os.Stat(real); err == nil && info != nil && info.Mode().Type() == os.ModeDevice {
			nodes = append(nodes, real)
		}
		if strings.HasPrefix(path, zvolLinks) {
			switch found, err := v.nodes(path); {
			case err == nil:
				nodes = found
			case len(nodes) == 0: // a user without rights trusts a link that is there
				out[path] = fmt.Sprintf("may be in use: it has no link in %s, and its device was not found: %s", strings.TrimSuffix(zvolLinks, "/"), strings.ReplaceAll(err.Error(), "\n", "; "))
			}
		} else if len(nodes) == 0 {
			if why := usage(path); why != "" {
				out[path] = why
			}
		}
		for _, node := range nodes {
			devices[node] = path
		}
	}
	if len(devices) == 0 {
		return out, nil
	}
	return out, inUse(ctx, devices, out)
}

func usage(path string) string {
	dir, err := os.Open(path)
	if err != nil {
		return "" // not there, or of no file that a mount hides
	}
	defer dir.Close()
	if names, _ := dir.Readdirnames(3); len(names) > 0 {
		return fmt.Sprintf("is not empty (%s)", names[0])
	}
	if device(path) != device(filepath.Dir(path)) {
		return "has something mounted already"
	}
	return ""
}

// device is that of a path's file, 0 where it is unknown.
func device(path string) uint64 {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil {
		return 0
	}
	return st.Dev
}
