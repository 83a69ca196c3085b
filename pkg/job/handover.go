package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// handOver is a restore's last stage. It bears to be repeated: what it has done it
// finds done, and the mark that a restore is due goes last.
func (t *restoreJob) handOver(ctx context.Context) error {
	there, err := t.target.List(ctx, hosts.ListQuery{Dataset: t.state.Target.Root, Recursive: true})
	if err != nil {
		return err
	}
	h := &handover{restoreJob: t, there: &there, closed: map[string]bool{}}
	t.report.Next = nil
	for _, step := range []func(context.Context, *plan.Dataset, *zfs.Dataset) error{h.giveBack, h.joinKey, h.key, h.mountBack, h.unmark} {
		for _, d := range t.report.Plan.Datasets { // those above first
			at := there.Find(d.Target)
			if at == nil || d.Restore == nil {
				continue
			}
			if err := step(ctx, d, at); err != nil {
				return err
			}
		}
	}
	if err := h.remount(ctx); err != nil {
		return err
	}
	t.report.Next = slices.Concat(h.keys, h.joins, h.mounts)
	return nil
}

// handover is what is done, and what is left to do by hand, for the datasets of a plan.
type handover struct {
	*restoreJob
	there  *zfs.Listing
	closed map[string]bool // filesystems that are not mounted, and hold back those below
	// What is left: keys to be loaded, joined, and filesystems to be mounted.
	keys, joins, mounts []string
}

func (h *handover) giveBack(ctx context.Context, d *plan.Dataset, at *zfs.Dataset) error {
	if !d.Restore.Due {
		return nil
	}
	a := zfs.PropertyChange{Dataset: d.Target, Set: d.Restore.Set}
	for _, name := range d.Restore.Revert {
		if at.Properties[name].Local() {
			a.Revert = append(a.Revert, name)
		}
	}
	h.changed = true
	return h.own(ctx, func(o hosts.Restorer) error { return o.SetProperties(ctx, a) })
}

// joinKey makes one encryption root again of what was one, where that is proved.
func (h *handover) joinKey(ctx context.Context, d *plan.Dataset, at *zfs.Dataset) error {
	above := h.there.KeyAbove(at)
	switch {
	case !d.Restore.Due || !d.Encrypted || above == nil || at.Get("keyformat") != above.Get("keyformat"):
	case zfs.KeyIsProved(at, above) && (above.KeyLoaded() || !at.KeyLoaded()):
		err := h.own(ctx, func(o hosts.Restorer) error { return o.InheritKey(ctx, d.Target) })
		if errors.Is(err, &zfs.Error{Kind: zfs.KeyMissing}) || errors.Is(err, &zfs.Error{Kind: zfs.NotSupported}) {
			h.joins = append(h.joins, joinByHand(d, above)) // zfs(8) alone needs both keys
			return nil
		}
		if err != nil {
			return err
		}
		h.rep.Log(fmt.Sprintf("%s has the key of %s: one zfs load-key opens both", d.Target, above.Name))
		at.Properties["encryptionroot"] = zfs.Property{Value: above.Name, Source: "-"}
		at.Properties["keystatus"] = above.Properties["keystatus"]
	case d.Restore.Takes == above.Name && zfs.KeyIsUnknown(at, above) && at.Prompts() && above.Prompts():
		err := h.own(ctx, func(o hosts.Restorer) error {
			return o.InheritKeyAsserted(ctx, zfs.AssertedKey{Dataset: d.Target, Root: above.Name})
		})
		if errors.Is(err, &zfs.Error{Kind: zfs.NotSupported}) || errors.Is(err, &zfs.Error{Kind: zfs.KeyMissing}) || errors.Is(err, hosts.ErrForbidden) {
			h.joins = append(h.joins, joinByHand(d, above))
			return nil
		}
		if err != nil {
			return err
		}
		h.rep.Log(fmt.Sprintf("%s takes its key from %s, as in the copy: one zfs load-key opens both", d.Target, above.Name))
		at.Properties["encryptionroot"] = zfs.Property{Value: above.Name, Source: "-"}
	case zfs.KeyIsProved(at, above) || !at.HasPassphrase():
		h.joins = append(h.joins, joinByHand(d, above))
	}
	return nil
}

func joinByHand(d *plan.Dataset, above *zfs.Dataset) string {
	return zfs.CommandLine([]string{"zfs", "change-key", "-i", d.Target}) + "  # if it had one key with " + above.Name + "; both have to be loaded"
}

// key notes a key that is to be loaded.
func (h *handover) key(_ context.Context, _ *plan.Dataset, at *zfs.Dataset) error {
	root := h.there.RootOf(at)
	if root == nil || root.KeyLoaded() {
		return nil
	}
	text := zfs.CommandLine([]string{"zfs", "load-key", root.Name}) + "  # the passphrase of the original"
	if root.Get("keyformat") != "passphrase" {
		text = zfs.CommandLine([]string{"zfs", "load-key", "-L", "file:///PATH", root.Name}) + "  # PATH: the key file of the original"
	}
	if slices.Contains(h.keys, text) {
		return nil
	}
	h.keys = append(h.keys, text)
	location, known := root.Properties["keylocation"] // a restricted key is not told that of an ancestor
	if root.Get("keyformat") != "passphrase" && known && !strings.Contains(location.Value, "://") {
		h.keys = append(h.keys, zfs.CommandLine([]string{"zfs", "set", "keylocation=file:///PATH", root.Name})+"  # so that it is found after a restart, too")
	}
	return nil
}

// mountBack mounts a filesystem of the plan, where it is one that mounts.
func (h *handover) mountBack(ctx context.Context, d *plan.Dataset, at *zfs.Dataset) error {
	canmount := at.Get("canmount")
	if d.Restore.Due {
		canmount = cmp.Or(d.Restore.Set["canmount"], "on")
	}
	if d.Type != zfs.Filesystem || canmount != "on" {
		return nil // what this restore unmounted remount sees to
	}
	return h.mountOne(ctx, at)
}

// remount does the same for what this restore has unmounted.
func (h *handover) remount(ctx context.Context) error {
	for _, name := range h.idle { // who knows what unmounted them
		if at := h.there.Find(name); at != nil && at.Get("mounted") != "yes" && !h.closed[name] && mounts(at) {
			h.closed[name] = true
			h.mounts = append(h.mounts, zfs.CommandLine([]string{"zfs", "mount", name}))
		}
	}
	for _, d := range h.report.Plan.Datasets {
		if d.Restore == nil {
			continue
		}
		for _, name := range d.Restore.Unmount {
			if at := h.there.Find(name); at != nil {
				if err := h.mountOne(ctx, at); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// mountOne mounts a filesystem, where that is asked for and can be, or notes how.
func (h *handover) mountOne(ctx context.Context, at *zfs.Dataset) error {
	if at.Get("mounted") == "yes" || !strings.HasPrefix(at.Get("mountpoint"), "/") || h.closed[at.Name] {
		return nil
	}
	root := h.there.RootOf(at)
	locked := at.Encrypted() && (root == nil || !root.KeyLoaded())
	if !h.mount || locked || h.closedAbove(at.Name) {
		h.closed[at.Name] = true
		h.mounts = append(h.mounts, zfs.CommandLine([]string{"zfs", "mount", at.Name}))
		return nil
	}
	if err := h.own(ctx, func(o hosts.Restorer) error { return o.Mount(ctx, at.Name) }); err != nil {
		return err
	}
	h.changed = true
	at.Properties["mounted"] = zfs.Property{Value: "yes", Source: "-"}
	h.rep.Log(fmt.Sprintf("mounted %s at %s", at.Name, at.Get("mountpoint")))
	return nil
}

func (h *handover) closedAbove(name string) bool {
	for name = zfs.ParentOf(name); name != ""; name = zfs.ParentOf(name) {
		if h.closed[name] {
			return true
		}
	}
	return false
}

// unmark takes what only an unfinished restore needs off a dataset: the source of the
// next send is none of ours.
func (h *handover) unmark(ctx context.Context, d *plan.Dataset, _ *zfs.Dataset) error {
	if !d.Restore.Due {
		return nil
	}
	return h.own(ctx, func(o hosts.Restorer) error {
		return o.SetProperties(ctx, zfs.PropertyChange{Dataset: d.Target, Revert: []string{zfs.FlagsProperty, zfs.RestoreProperty}})
	})
}
