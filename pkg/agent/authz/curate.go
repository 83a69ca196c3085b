package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// RenameDiverged is for copies whose key may do so, by names that tell what they are. Nothing is
// destroyed by it, so that append-only allows it, too.
func RenameDiverged(_ context.Context, g *Guard, all *[]zfs.DivergedCopy) error {
	if len(g.policy.Rotated) == 0 {
		return errors.New("no copy may be set aside; --allow rotate=DATASET in authorized_keys allows it")
	}
	for _, a := range *all {
		if err := a.Check(); err != nil {
			return err
		}
		if !below(a.Dataset, g.policy.Rotated) {
			return fmt.Errorf("%q may not be set aside; --allow rotate=DATASET in authorized_keys allows it", cut(a.Dataset))
		}
	}
	return nil
}

// DivergedNames tells of copies that are set aside.
func DivergedNames(all *[]zfs.DivergedCopy) (told Account) {
	for _, a := range *all {
		told.each = append(told.each, quote(cut(a.Dataset))+" as "+quote(cut(a.As)))
	}
	return told
}

// formerly is the name by which a grant knows a dataset: a copy that a key set aside is
// beside what it may receive into.
func (g *Guard) formerly(dataset string) string {
	before, ok := zfs.NameBeforeRename(dataset)
	for _, root := range g.policy.Rotated {
		beside := strings.HasPrefix(dataset, zfs.ParentOf(root)+"/") // and not below what somebody else set aside
		if ok && beside && below(before, []string{root}) {
			return before
		}
	}
	return dataset
}

// DestroyOrphans is for copies whose key may do so, never with append-only. The host looks
// whether they are a job's and nobody else's.
func DestroyOrphans(_ context.Context, g *Guard, all *[]zfs.Orphan) error {
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
		if !below(a.Dataset, g.policy.Removed) || slices.Contains(g.policy.Removed, a.Dataset) {
			return fmt.Errorf("%q may not be removed; --allow remove=DATASET in authorized_keys allows it for what is below DATASET", cut(a.Dataset))
		}
	}
	return nil
}

// OrphanNames tells of copies that are destroyed.
func OrphanNames(all *[]zfs.Orphan) (told Account) {
	for _, a := range *all {
		told.each = append(told.each, quote(cut(a.Dataset))+" of "+quote(a.Tag))
	}
	return told
}
