package authz

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// beingRestored permits an action on a dataset only while a restore is bringing it.
func beingRestored(ctx context.Context, g *Guard, dataset *string) error {
	if !within(*dataset, g.policy.Restored) {
		return fmt.Errorf("%q is not below a dataset that may be restored; --allow restore=DATASET in authorized_keys allows it", clipName(*dataset))
	}
	have, err := g.host.Properties(ctx, []string{*dataset}, []string{zfs.RestoreProperty})
	if err != nil {
		return err
	}
	if !have[*dataset][zfs.RestoreProperty].Local() {
		return fmt.Errorf("%s is not being restored", *dataset)
	}
	return nil
}

// mayInheritKey permits restored datasets, and copies whose key is not loaded, to inherit a key.
// Without a loaded key nothing is wrapped again, so old and future streams keep their key. The
// host proves that both keys are the same.
func mayInheritKey(ctx context.Context, g *Guard, dataset *string) error {
	if err := beingRestored(ctx, g, dataset); err == nil || !within(*dataset, g.policy.Receive) {
		return err
	}
	have, err := g.host.Properties(ctx, []string{*dataset}, []string{"keystatus", "keylocation"})
	if err != nil {
		return err
	}
	if m := have[*dataset]; m["keystatus"].Value != "unavailable" || m["keylocation"].Value != "prompt" {
		return fmt.Errorf("the key of %s is in use, or it is said where it is: it stays as it is", *dataset)
	}
	return nil
}

// mayMakeEncryptionRoot permits this for copies whose key may be replaced; it happens just before
// that.
func mayMakeEncryptionRoot(_ context.Context, g *Guard, dataset *string) error {
	if err := g.checkReceivable(*dataset); err != nil {
		return err
	}
	if g.keepsVersions(*dataset) && !within(*dataset, g.policy.Rekeyed) {
		return fmt.Errorf("the key of %s stays as it is; --allow receive-rekey=DATASET in authorized_keys lets the source replace it", *dataset)
	}
	return nil
}

// mayMount permits mounting a restored dataset on a directory in which it hides nothing. The
// refusal does not show what it would hide.
func mayMount(ctx context.Context, g *Guard, dataset *string) error {
	if err := beingRestored(ctx, g, dataset); err != nil {
		return err
	}
	have, err := g.host.Properties(ctx, []string{*dataset}, []string{"mountpoint", "mounted"})
	if err != nil {
		return err
	}
	path := have[*dataset]["mountpoint"].Value
	if have[*dataset]["mounted"].Value == "yes" || !strings.HasPrefix(path, "/") {
		return nil
	}
	found, err := g.host.InUse(ctx, []string{path})
	if err == nil && found[path] != "" {
		err = fmt.Errorf("mounting %s would hide what is in its directory: look there, and mount it by hand", *dataset)
	}
	return err
}

// maySetProperties permits undoing the precautions on a restored dataset.
func maySetProperties(ctx context.Context, g *Guard, a *zfs.PropertyChange) error {
	for name, value := range a.Set {
		if name != "readonly" && name != "canmount" || zfs.CheckValue(name, value) != nil {
			return fmt.Errorf("the property %q may not be set to %q", clipName(name), clipName(value))
		}
	}
	for _, name := range a.Revert {
		if !slices.Contains([]string{"readonly", "canmount", zfs.FlagsProperty, zfs.RestoreProperty}, name) {
			return fmt.Errorf("the property %q may not be changed", clipName(name))
		}
	}
	return beingRestored(ctx, g, &a.Dataset)
}

// propertyNames returns the account of a change of properties.
func propertyNames(a *zfs.PropertyChange) account {
	out := account{prefix: quote(clipName(a.Dataset))}
	for _, name := range slices.Sorted(maps.Keys(a.Set)) {
		out.items = append(out.items, "set "+quote(name+"="+a.Set[name]))
	}
	for _, name := range a.Revert {
		out.items = append(out.items, "revert "+quote(name))
	}
	return out
}
