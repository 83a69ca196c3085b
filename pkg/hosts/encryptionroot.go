package hosts

import (
	"context"

	"zxfer/pkg/fault"
	"zxfer/pkg/remedy"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

// InheritKey checks by itself that both keys are the same. If both keys are loaded, zfs(8) wraps
// the dataset's key again, which is safe.
func (l *Local) InheritKey(ctx context.Context, dataset string) error {
	listing, err := l.List(ctx, ListQuery{Dataset: dataset})
	if err != nil {
		return err
	}
	d := listing.Find(dataset)
	switch {
	case d == nil:
		return &zfs.Error{Kind: zfs.NotFound, Op: zfs.OpChangeKey, Subject: dataset}
	case d.Encrypted() && d.Get("encryptionroot") != dataset:
		return nil // already inherited
	}
	above := listing.KeyAbove(d)
	if above == nil || !zfs.KeyIsProved(d, above) {
		return fault.Refusef("with both keys loaded: "+remedy.Mark(remedy.Command("zfs", "change-key", "-i", dataset)),
			"%s: not proven to have the key of its parent", dataset)
	}
	if d.KeyLoaded() {
		return l.tools.InheritKey(ctx, dataset)
	}
	return l.with(ctx, func(ctx context.Context, b cli.Backend) error { return b.InheritKey(ctx, dataset) })
}

// InheritKeyAsserted trusts the source, which may lie. If it lied, no key opens the dataset until
// MakeEncryptionRoot undoes the change. A change of the root's key then panics the kernel, because
// it expects that each key below opens with the root's key. So the root must be a copy whose key
// also came from the source, or a root that nothing on this host can open.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dsl_crypt.c (spa_keystore_change_key_sync_impl)
func (l *Local) InheritKeyAsserted(ctx context.Context, t zfs.AssertedKey) error {
	listing, err := l.List(ctx, ListQuery{Dataset: t.Dataset})
	if err != nil {
		return err
	}
	d := listing.Find(t.Dataset)
	if d == nil {
		return &zfs.Error{Kind: zfs.NotFound, Op: zfs.OpChangeKey, Subject: t.Dataset}
	}
	if d.Encrypted() && d.Get("encryptionroot") == t.Root {
		return nil
	}
	above := listing.KeyAbove(d)
	switch {
	case above == nil || above.Name != t.Root || !zfs.KeyIsUnknown(d, above) || !d.Prompts():
		return fault.Refusef("", "%s: its key differs from the key of %s, or the dataset is in use", t.Dataset, t.Root)
	case !above.KeyReceivedRaw() && !above.Prompts():
		return fault.Refusef("with both keys loaded: "+remedy.Mark(remedy.Command("zfs", "change-key", "-i", t.Dataset)),
			"%s: its key differs from the key of %s, which was created on this host", t.Dataset, t.Root)
	}
	return l.with(ctx, func(ctx context.Context, b cli.Backend) error { return b.InheritKey(ctx, t.Dataset) })
}

// MakeEncryptionRoot refuses clones, because they share the key of their origin.
func (l *Local) MakeEncryptionRoot(ctx context.Context, dataset string) error {
	listing, err := l.List(ctx, ListQuery{Dataset: dataset})
	if err != nil {
		return err
	}
	d := listing.Find(dataset)
	switch {
	case d == nil:
		return &zfs.Error{Kind: zfs.NotFound, Op: zfs.OpChangeKey, Subject: dataset}
	case !d.Encrypted() || d.Get("origin") != "" || d.Inconsistent():
		return fault.Refusef("", "%s cannot have its own key", dataset)
	case d.Get("encryptionroot") == dataset:
		return nil
	}
	return l.with(ctx, func(ctx context.Context, b cli.Backend) error { return b.MakeEncryptionRoot(ctx, dataset) })
}
