package authz

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// mayRenameDiverged permits setting copies aside under names that mark them as such. It destroys
// nothing, so append-only permits it too.
func mayRenameDiverged(ctx context.Context, g *Guard, all *[]zfs.DivergedCopy) error {
	if len(g.policy.Rotated) == 0 {
		return errors.New("renaming copies is not permitted; to permit it, add --allow rotate=DATASET in authorized_keys")
	}
	for _, a := range *all {
		if err := a.Check(); err != nil {
			return err
		}
		if !within(a.Dataset, g.policy.Rotated) {
			return fmt.Errorf("renaming %q is not permitted; to permit it, add --allow rotate=DATASET in authorized_keys", clipName(a.Dataset))
		}
		if err := g.checkTreeRoles(ctx, a.Dataset); err != nil {
			return err
		}
	}
	return nil
}

// divergedNames returns the account of copies that are set aside.
func divergedNames(all *[]zfs.DivergedCopy) (account account) {
	for _, a := range *all {
		account.items = append(account.items, quote(clipName(a.Dataset))+" as "+quote(clipName(a.As)))
	}
	return account
}

// nameBefore returns the name that grants apply to: for a copy that this key set aside, the
// name before the renaming.
func (g *Guard) nameBefore(dataset string) string {
	before, ok := zfs.NameBeforeRename(dataset)
	for _, root := range g.policy.Rotated {
		sibling := strings.HasPrefix(dataset, zfs.ParentOf(root)+"/") // not the children of other renamed datasets
		if ok && sibling && within(before, []string{root}) {
			return before
		}
	}
	return dataset
}

// mayRenameCopies permits renaming copies below a granted dataset to other names below the same one.
// The granted dataset itself keeps its name, and with it the limits that the administrator set. It
// destroys nothing, so append-only permits it too.
func mayRenameCopies(ctx context.Context, g *Guard, all *[]zfs.RenamedCopy) error {
	if len(g.policy.Followed) == 0 {
		return errors.New("renaming copies is not permitted; to permit it, add --allow follow=DATASET in authorized_keys")
	}
	for _, r := range *all {
		if err := r.Check(); err != nil {
			return err
		}
		both := func(root string) bool {
			return strings.HasPrefix(r.Dataset, root+"/") && strings.HasPrefix(r.As, root+"/")
		}
		if !slices.ContainsFunc(g.policy.Followed, both) {
			return fmt.Errorf("renaming %q to %q is not permitted; to permit it for descendants of DATASET, add --allow follow=DATASET in authorized_keys",
				clipName(r.Dataset), clipName(r.As))
		}
		if err := cmp.Or(g.checkTreeRoles(ctx, r.Dataset), g.checkRole(ctx, r.As)); err != nil {
			return err
		}
	}
	return nil
}

// renamedNames returns the account of copies that are renamed.
func renamedNames(all *[]zfs.RenamedCopy) (account account) {
	for _, r := range *all {
		account.items = append(account.items, quote(clipName(r.Dataset))+" as "+quote(clipName(r.As)))
	}
	return account
}

// mayDestroyOrphans permits destroying copies, never with append-only. The host ensures that they
// belong to one job only.
func mayDestroyOrphans(ctx context.Context, g *Guard, all *[]zfs.Orphan) error {
	if g.policy.AppendOnly {
		return errAppendOnly
	}
	if len(g.policy.Removed) == 0 {
		return errors.New("destroying copies is not permitted; to permit it, add --allow remove=DATASET in authorized_keys")
	}
	for _, a := range *all {
		if err := a.Check(); err != nil {
			return err
		}
		if len(quote(a.Tag)) > maxTag {
			return fmt.Errorf("a hold tag of %d bytes does not belong to zxfer", len(a.Tag))
		}
		if !within(a.Dataset, g.policy.Removed) || slices.Contains(g.policy.Removed, a.Dataset) {
			return fmt.Errorf("destroying %q is not permitted; to permit it for descendants of DATASET, add --allow remove=DATASET in authorized_keys", clipName(a.Dataset))
		}
		if err := g.checkTreeRoles(ctx, a.Dataset); err != nil {
			return err
		}
	}
	return nil
}

// orphanNames returns the account of copies that are destroyed.
func orphanNames(all *[]zfs.Orphan) (account account) {
	for _, a := range *all {
		account.items = append(account.items, quote(clipName(a.Dataset))+" of "+quote(a.Tag))
	}
	return account
}

// mayDestroy permits destroying versions of granted datasets unless keepsVersions.
func mayDestroy(ctx context.Context, g *Guard, versions *[]string) error {
	if len(*versions) == 0 && g.policy.AppendOnly { // the client asks whether it may destroy at all
		return errAppendOnly
	}
	for _, n := range *versions {
		dataset, _, err := zfs.ParseVersion(n)
		if err != nil {
			return err
		}
		if g.isHealSnapshot(n) {
			continue
		}
		if g.policy.AppendOnly {
			return errAppendOnly
		}
		if !within(dataset, g.sendOrReceive()) {
			return errOutside(n)
		}
		if g.keepsVersions(dataset) {
			return fmt.Errorf("only restoring %q is permitted, not destroying", clipName(dataset))
		}
	}
	return g.checkSnapshotRoles(ctx, *versions)
}

var errAppendOnly = errors.New("append-only: destroying is not permitted")

// keepsVersions reports whether versions of a dataset must not be destroyed: with append-only,
// and for originals that may only be restored. Newer data of an original may exist nowhere
// else.
func (g *Guard) keepsVersions(dataset string) bool {
	return g.policy.AppendOnly || !within(dataset, g.policy.Receive) && !within(dataset, g.policy.Send)
}
