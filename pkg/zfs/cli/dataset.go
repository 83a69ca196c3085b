package cli

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"zxfer/pkg/fault"
	"zxfer/pkg/files"
	"zxfer/pkg/remedy"
	"zxfer/pkg/zfs"
)

// CreateParents runs one zfs create for each missing ancestor, because -p would set canmount only
// on the last.
func (c *CLI) CreateParents(ctx context.Context, dataset string) error {
	if _, err := zfs.ParseDataset(dataset); err != nil {
		return err
	}
	above := ancestors(dataset)
	if len(above) < 2 {
		return nil // the pool
	}
	existing, err := c.Properties(ctx, above, []string{"type"})
	if err != nil {
		return err
	}
	for _, name := range above[1:] {
		if existing[name] != nil {
			continue
		}
		f := zfs.Failure{Op: zfs.OpCreate, Subject: name, Properties: []string{"canmount"}}
		_, err := c.zfsOutput(ctx, f, []string{"create", "-u", "-o", "canmount=off", name})
		if err = ignore(err, zfs.Exists); err != nil { // a concurrent receive created it
			return err
		}
	}
	return nil
}

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
			args = slices.Insert(args, 1, "-S") // without -S, zfs refuses canmount, which is not inheritable
		}
		if _, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpInherit, Subject: a.Dataset, Properties: []string{name}}, args); err != nil {
			return err
		}
	}
	return nil
}

// RenameDiverged renames copies if their GUIDs are the requested ones. It ignores copies that are
// renamed already.
func (c *CLI) RenameDiverged(ctx context.Context, all []zfs.DivergedCopy) error {
	for _, a := range all {
		if err := a.Check(); err != nil {
			return err
		}
		existing, err := c.Properties(ctx, []string{a.Dataset, a.As}, []string{"guid"})
		if err != nil {
			return err
		}
		guid := strconv.FormatUint(a.GUID, 10)
		switch {
		case existing[a.As]["guid"].Value == guid:
			continue
		case existing[a.Dataset]["guid"].Value != guid:
			return fault.Refusef("run the same command again", "%s has changed since the plan was made: it was not renamed", a.Dataset)
		}
		l, err := c.List(ctx, zfs.RolesBelow(a.Dataset))
		if err != nil {
			return err
		}
		if why := a.RefusalReason(&l); why != "" {
			return fault.Refusef("move it out of the copy, or omit rotate", "%s was not renamed: %s", a.Dataset, why)
		}
		if _, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpRename, Subject: a.Dataset}, []string{"rename", a.Dataset, a.As}); err != nil {
			return err
		}
	}
	return nil
}

// RenameCopies renames copies whose source dataset was renamed. It ignores copies that are renamed
// already.
func (c *CLI) RenameCopies(ctx context.Context, all []zfs.RenamedCopy) error {
	for _, r := range all {
		if err := c.renameCopy(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func (c *CLI) renameCopy(ctx context.Context, r zfs.RenamedCopy) error {
	if err := r.Check(); err != nil {
		return err
	}
	parent := zfs.ParentOf(r.As)
	existing, err := c.Properties(ctx, []string{r.As, parent}, []string{"guid", "encryptionroot"})
	if err != nil {
		return err
	}
	l, err := c.List(ctx, zfs.ListQuery{Dataset: r.Dataset, Recursive: true, Versions: true, NoAncestors: true, User: []string{zfs.RoleProperty}})
	if err != nil {
		return err
	}
	switch as := existing[r.As]; {
	case as["guid"].Value == strconv.FormatUint(r.GUID, 10):
		return nil
	case as != nil:
		return fault.Refusef("rename or destroy it, if it is not needed", "%s is not renamed to %s, which exists", r.Dataset, r.As)
	case existing[parent] == nil:
		return fault.Refusef("create it, or run the same command again after its source was sent", "%s is not renamed to %s: the parent does not exist", r.Dataset, r.As)
	}
	names := make([]string, 0, len(l.Datasets))
	for _, d := range l.Datasets {
		names = append(names, d.Name)
	}
	mounted, err := c.Properties(ctx, names, []string{"mounted"})
	if err != nil {
		return err
	}
	for _, d := range l.Datasets {
		if p, ok := mounted[d.Name]["mounted"]; ok {
			d.Properties["mounted"] = p
		}
	}
	if why := r.RefusalReason(&l, existing[parent]["encryptionroot"].Value); why != "" {
		return fault.Refusef("run the same command again when this has changed", "%s is not renamed to %s: %s", r.Dataset, r.As, why)
	}
	_, err = c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpRename, Subject: r.Dataset}, []string{"rename", r.Dataset, r.As})
	return err
}

// DiscardPartial discards the partially received state. It is not an error if there is none.
func (c *CLI) DiscardPartial(ctx context.Context, dataset string) error {
	return ignore(c.change(ctx, zfs.OpDiscard, dataset, "receive", "-A"), zfs.NoState)
}

// LoadKey loads the key of an encryption root from a local file.
func (c *CLI) LoadKey(ctx context.Context, root, file string) error {
	return c.change(ctx, zfs.OpLoadKey, root, "load-key", "-L", "file://"+file)
}

func (c *CLI) UnloadKey(ctx context.Context, root string) error {
	return c.change(ctx, zfs.OpUnloadKey, root, "unload-key")
}

// InheritKey makes a dataset inherit its parent's key. zfs(8) can do this only if both keys are
// loaded.
func (c *CLI) InheritKey(ctx context.Context, dataset string) error {
	return c.change(ctx, zfs.OpChangeKey, dataset, "change-key", "-i")
}

// MakeEncryptionRoot always fails: zfs(8) can make an encryption root only with a new key.
func (c *CLI) MakeEncryptionRoot(_ context.Context, dataset string) error {
	return &zfs.Error{Kind: zfs.NotSupported, Op: zfs.OpChangeKey, Subject: dataset,
		Detail: "libzfs_core is required to make it an encryption root", Hint: "install it: " + remedy.MarkRoot("apt install python3-pyzfs")}
}

// Unmount unmounts a filesystem and all mounts below it. It ignores an unmounted one.
func (c *CLI) Unmount(ctx context.Context, dataset string) error {
	found, err := c.Properties(ctx, []string{dataset}, []string{"mounted"})
	if err != nil || found[dataset]["mounted"].Value == "no" {
		return err
	}
	return c.change(ctx, zfs.OpUnmount, dataset, zfs.OpUnmount)
}

// mountError classifies an error of the system calls that mount.
func mountError(source string, err error) error {
	e := &zfs.Error{Kind: zfs.Unknown, Op: zfs.OpMount, Subject: source, Detail: err.Error()}
	switch {
	case errors.Is(err, syscall.ENOENT):
		e.Kind, e.Detail = zfs.NotFound, "no such filesystem or snapshot"
	case errors.Is(err, syscall.EACCES):
		e.Kind, e.Detail = zfs.KeyMissing, "its key is not loaded"
	case errors.Is(err, syscall.EPERM):
		e.Kind, e.Detail, e.Hint = zfs.Permission, "only root can mount", "log in there as root"
	case errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.ENODEV):
		return files.NotSupported(err)
	case errors.Is(err, syscall.EBUSY):
		e.Kind = zfs.Busy
	case errors.Is(err, syscall.EIO):
		e.Kind = zfs.PoolFault
	}
	return e
}

// RunDirectory returns the directory that systemd's RuntimeDirectory= creates.
func (c *CLI) RunDirectory() string { return "/run/zxfer" }

// mountedAt returns the mountpoint of a filesystem or snapshot and a process that can see it. Both
// are "" if it is mounted in no process's namespace.
func mountedAt(name string) (at, process string) {
	tables, _ := filepath.Glob("/proc/[0-9]*/mountinfo") // a valid pattern never fails
	seen := map[string]bool{}
	for _, table := range tables {
		namespace, _ := os.Readlink(filepath.Join(filepath.Dir(table), "ns/mnt"))
		if seen[namespace] && namespace != "" {
			continue
		}
		seen[namespace] = true
		text, _ := os.ReadFile(table) // empty if the process ended
		for _, m := range zfs.ParseMounts(string(text), zfs.PoolOf(name)) {
			if m.Of == name {
				return m.At, filepath.Base(filepath.Dir(table))
			}
		}
	}
	return "", ""
}
