package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// mayRenameDiverged permits setting copies aside under names that mark them as such. It destroys
// nothing, so append-only permits it too.
func mayRenameDiverged(_ context.Context, g *Guard, all *[]zfs.DivergedCopy) error {
	if len(g.policy.Rotated) == 0 {
		return errors.New("no copy may be set aside; --allow rotate=DATASET in authorized_keys allows it")
	}
	for _, a := range *all {
		if err := a.Check(); err != nil {
			return err
		}
		if !within(a.Dataset, g.policy.Rotated) {
			return fmt.Errorf("%q may not be set aside; --allow rotate=DATASET in authorized_keys allows it", clipName(a.Dataset))
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

// mayDestroyOrphans permits destroying copies, never with append-only. The host ensures that they
// belong to one job only.
func mayDestroyOrphans(_ context.Context, g *Guard, all *[]zfs.Orphan) error {
	if g.policy.AppendOnly {
		return errAppendOnly
	}
	if len(g.policy.Removed) == 0 {
		return errors.New("no copy may be removed; --allow remove=DATASET in authorized_keys allows it")
	}
	for _, a := range *all {
		if err := a.Check(); err != nil {
			return err
		}
		if len(quote(a.Tag)) > maxTag {
			return fmt.Errorf("a hold's tag of %d bytes is none of zxfer's", len(a.Tag))
		}
		if !within(a.Dataset, g.policy.Removed) || slices.Contains(g.policy.Removed, a.Dataset) {
			return fmt.Errorf("%q may not be removed; --allow remove=DATASET in authorized_keys allows it for what is below DATASET", clipName(a.Dataset))
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
