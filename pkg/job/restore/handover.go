package restore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// handOver is the last stage of a restore: it restores properties, keys and mounts of the
// datasets. It is idempotent and removes the unfinished-restore mark last.
func (t *restoreJob) handOver(ctx context.Context) error {
	listing, err := t.send.Ends.Target.Conn.List(ctx, hosts.ListQuery{Dataset: t.send.State.Target.Root, Recursive: true})
	if err != nil {
		return err
	}
	h := newHandover(t, &listing)
	t.send.Report.Next = nil
	for _, step := range []func(context.Context, *plan.Dataset, *zfs.Dataset) error{h.restoreProperties, h.joinKey, h.noteKey, h.mountPlanned, h.unmark} {
		for _, d := range t.send.Report.Plan.Datasets { // ancestors first
			at := listing.Find(d.Target)
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
	t.send.Report.Next = slices.Concat(h.keys, h.joins, h.places)
	if len(h.left) > 0 {
		t.send.Report.Next = append(t.send.Report.Next, t.mountCommand(ctx, h.left))
	}
	return nil
}

// handover collects the results of the stage and the commands left to the user.
type handover struct {
	job        *restoreJob
	listing    *zfs.Listing
	notMounted map[string]bool // unmounted filesystems; their descendants cannot be mounted either
	// Commands left to the user: load keys, join encryption roots, choose mountpoints.
	keys, joins, places []string
	left                []string        // filesystems that are left unmounted
	noPlace             map[string]bool // filesystems without a mountpoint
	distrusted          map[string]bool // filesystems to which zfs.Distrust applied
}

func newHandover(t *restoreJob, listing *zfs.Listing) *handover {
	return &handover{job: t, listing: listing, notMounted: map[string]bool{}, noPlace: map[string]bool{}, distrusted: map[string]bool{}}
}

func (h *handover) restoreProperties(ctx context.Context, d *plan.Dataset, at *zfs.Dataset) error {
	if !d.Restore.Due {
		return nil
	}
	a := zfs.PropertyChange{Dataset: d.Target, Set: maps.Clone(d.Restore.Set)}
	if a.Set["canmount"] == "on" { // only the mount itself sets it
		delete(a.Set, "canmount")
	}
	for _, name := range d.Restore.Revert {
		if at.Properties[name].Local() && name != "canmount" {
			a.Revert = append(a.Revert, name)
		}
	}
	h.job.send.MarkChanged()
	return hosts.Run(ctx, h.job.send.Ends.Target.Conn, hosts.OpSetProperties, a)
}

// joinKey makes a dataset inherit its key again, if both keys are provably equal, or if the copy
// recorded it and both keys are passphrases.
func (h *handover) joinKey(ctx context.Context, d *plan.Dataset, at *zfs.Dataset) error {
	above := h.listing.KeyAbove(at)
	switch {
	case !d.Restore.Due || !d.Encrypted || above == nil || at.Get("keyformat") != above.Get("keyformat"):
	case zfs.KeyIsProved(at, above) && (above.KeyLoaded() || !at.KeyLoaded()):
		err := hosts.Run(ctx, h.job.send.Ends.Target.Conn, hosts.OpInheritKey, d.Target)
		if errors.Is(err, &zfs.Error{Kind: zfs.KeyMissing}) || errors.Is(err, &zfs.Error{Kind: zfs.NotSupported}) {
			h.joins = append(h.joins, joinByHand(d, above)) // zfs(8) needs both keys loaded
			return nil
		}
		if err != nil {
			return err
		}
		h.job.send.Reporter.Log(fmt.Sprintf("%s has the key of %s: one zfs load-key opens both", d.Target, above.Name))
		at.Properties["encryptionroot"] = zfs.Property{Value: above.Name, Source: "-"}
		at.Properties["keystatus"] = above.Properties["keystatus"]
	case d.Restore.AssertedRoot == above.Name && zfs.KeyIsUnknown(at, above) && at.Prompts() && above.Prompts():
		err := hosts.Run(ctx, h.job.send.Ends.Target.Conn, hosts.OpInheritKeyAsserted, zfs.AssertedKey{Dataset: d.Target, Root: above.Name})
		if errors.Is(err, &zfs.Error{Kind: zfs.NotSupported}) || errors.Is(err, &zfs.Error{Kind: zfs.KeyMissing}) || errors.Is(err, hosts.ErrForbidden) {
			h.joins = append(h.joins, joinByHand(d, above))
			return nil
		}
		if err != nil {
			return err
		}
		h.job.send.Reporter.Log(fmt.Sprintf("%s inherits its key from %s, as in the copy: one zfs load-key opens both", d.Target, above.Name))
		at.Properties["encryptionroot"] = zfs.Property{Value: above.Name, Source: "-"}
	case zfs.KeyIsProved(at, above) || !at.HasPassphrase():
		h.joins = append(h.joins, joinByHand(d, above))
	}
	return nil
}

func joinByHand(d *plan.Dataset, above *zfs.Dataset) string {
	return zfs.CommandLine([]string{"zfs", "change-key", "-i", d.Target}) + "  # if it had the key of " + above.Name + "; load both keys first"
}

// noteKey notes the command that loads a missing key.
func (h *handover) noteKey(_ context.Context, _ *plan.Dataset, at *zfs.Dataset) error {
	root := h.listing.RootOf(at)
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
	location, known := root.Properties["keylocation"] // restricted keys do not reveal an ancestor's keylocation
	if root.Get("keyformat") != "passphrase" && known && !strings.Contains(location.Value, "://") {
		h.keys = append(h.keys, zfs.CommandLine([]string{"zfs", "set", "keylocation=file:///PATH", root.Name})+"  # so that it is also found after a reboot")
	}
	return nil
}

// toMount reports whether a restored filesystem is to be mounted, now and at boot. Until it is mounted, it has
// canmount=noauto: the next boot would mount it by name, through any link that its parent's files have.
func toMount(d *plan.Dataset, at *zfs.Dataset) bool {
	pending := at.Properties[zfs.CanMountProperty].Local()
	return d.Type == zfs.Filesystem && (pending || d.Restore.Due && cmp.Or(d.Restore.Set["canmount"], "on") == "on")
}

// mountPlanned mounts a filesystem of the plan if canmount is on, or will be.
func (h *handover) mountPlanned(ctx context.Context, d *plan.Dataset, at *zfs.Dataset) error {
	switch {
	case toMount(d, at):
		return h.mountOne(ctx, at, zfs.MountRequest{Dataset: at.Name, At: d.Restore.Mountpoint, Boot: true})
	case d.Type == zfs.Filesystem && !d.Restore.Due && at.Get("canmount") == "on":
		return h.mountOne(ctx, at, zfs.MountRequest{Dataset: at.Name, Over: h.job.remount[at.Name], Trusted: true})
	}
	return nil // remount handles filesystems that this restore unmounted
}

// remount mounts the filesystems that this restore unmounted.
func (h *handover) remount(ctx context.Context) error {
	for _, name := range h.job.unmounted { // it is unknown who unmounted them
		if at := h.listing.Find(name); at != nil && at.Get("mounted") != "yes" && !h.notMounted[name] && mounts(at) {
			h.leave(name)
		}
	}
	for _, d := range h.job.send.Report.Plan.Datasets {
		if d.Restore == nil {
			continue
		}
		for _, name := range d.Restore.Unmount {
			if at := h.listing.Find(name); at != nil {
				if err := h.mountOne(ctx, at, zfs.MountRequest{Dataset: name, Over: true, Trusted: true}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// mountOne mounts a filesystem if --mount was given or this restore unmounted it, and its key is loaded. Otherwise it
// notes the command.
func (h *handover) mountOne(ctx context.Context, at *zfs.Dataset, m zfs.MountRequest) error {
	mounted := at.Get("mounted") == "yes"
	if mounted && !m.Boot || h.notMounted[at.Name] {
		return nil
	}
	if !strings.HasPrefix(at.Get("mountpoint"), "/") {
		h.notePlace(at, m.Boot)
		return nil
	}
	root := h.listing.RootOf(at)
	locked := at.Encrypted() && (root == nil || !root.KeyLoaded())
	if !h.job.mount && !h.job.remount[at.Name] || locked || h.closedAbove(at.Name) || h.job.send.Ends.Target.Conn.Require(ctx, hosts.OpMount) != nil {
		h.leave(at.Name)
		return nil
	}
	m.At = cmp.Or(m.At, at.Get("mountpoint"))
	loose, err := hosts.Call(ctx, h.job.send.Ends.Target.Conn, hosts.OpMount, m)
	if err != nil {
		return err
	}
	h.job.send.MarkChanged()
	at.Properties["mounted"] = zfs.Property{Value: "yes", Source: "-"}
	if m.Boot && !m.Trusted {
		if set := zfs.Distrust(at.Properties, h.distrusted[zfs.ParentOf(at.Name)]); len(set) > 0 {
			h.job.send.Reporter.Log(fmt.Sprintf("set %s on %s: its files come from another host", zfs.JoinValues(set), at.Name))
		}
		h.distrusted[at.Name] = true
	}
	if !mounted {
		h.job.send.Report.Mounted = append(h.job.send.Report.Mounted, at.Name)
		h.job.send.Reporter.Log(fmt.Sprintf("mounted %s at %s", at.Name, at.Get("mountpoint")))
	}
	switch {
	case loose != "":
		h.job.send.Reporter.Log(fmt.Sprintf("warning: %s is not mounted at boot: %s, and could redirect the mount", at.Name, loose))
	case m.Boot:
		at.Properties["canmount"] = zfs.Property{Value: "on", Source: "local"}
		delete(at.Properties, zfs.CanMountProperty)
	}
	return nil
}

// leave notes that a filesystem is left unmounted.
func (h *handover) leave(name string) {
	h.notMounted[name] = true
	h.left = append(h.left, name)
}

// notePlace notes how to mount a filesystem that has no mountpoint: with mountpoint=none or legacy. restored reports
// that a later command is to mount it.
func (h *handover) notePlace(at *zfs.Dataset, restored bool) {
	switch {
	case restored:
		if !h.noPlace[zfs.ParentOf(at.Name)] || at.Properties["mountpoint"].Local() { // otherwise it inherits
			h.places = append(h.places, zfs.CommandLine([]string{"zfs", "set", "mountpoint=/PATH", at.Name})+"  # it has mountpoint="+at.Get("mountpoint"))
		}
		h.noPlace[at.Name] = true
		h.left = append(h.left, at.Name)
	case h.job.remount[at.Name]:
		h.notMounted[at.Name] = true
		h.places = append(h.places, "# mount "+zfs.CommandLine([]string{at.Name})+" as before: it has mountpoint="+at.Get("mountpoint"))
	}
}

func (h *handover) closedAbove(name string) bool {
	for name = zfs.ParentOf(name); name != ""; name = zfs.ParentOf(name) {
		if h.notMounted[name] {
			return true
		}
	}
	return false
}

// unmark removes the properties of an unfinished restore. The dataset will be the source of the
// next send, so zxfer must not own it. It records that the filesystem is still to be mounted.
func (h *handover) unmark(ctx context.Context, d *plan.Dataset, at *zfs.Dataset) error {
	if !d.Restore.Due {
		return nil
	}
	a := zfs.PropertyChange{Dataset: d.Target, Revert: []string{zfs.FlagsProperty, zfs.RestoreProperty}}
	if toMount(d, at) && at.Get("canmount") != "on" {
		a.Set = map[string]string{zfs.CanMountProperty: "on"}
	}
	return hosts.Run(ctx, h.job.send.Ends.Target.Conn, hosts.OpSetProperties, a)
}
