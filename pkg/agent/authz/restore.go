package authz

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

// Restored is for what a restore has brought, all that it gives back: nothing else
// may be mounted, or take another key.
func Restored(ctx context.Context, g *Guard, dataset *string) error {
	if !below(*dataset, g.policy.Restored) {
		return fmt.Errorf("%q is not below a dataset that may be restored; --allow restore=DATASET in authorized_keys allows it", cut(*dataset))
	}
	have, err := g.site.Properties(ctx, []string{*dataset}, []string{zfs.RestoreProperty})
	if err != nil {
		return err
	}
	if !have[*dataset][zfs.RestoreProperty].Local() {
		return fmt.Errorf("%s is not being restored", *dataset)
	}
	return nil
}

// InheritKey is for what a restore has brought, and for copies whose key is not loaded:
// there nothing is wrapped anew, so that what was received before, and what is to come,
// has the key that it had. That it is one key the site proves.
func InheritKey(ctx context.Context, g *Guard, dataset *string) error {
	if err := Restored(ctx, g, dataset); err == nil || !below(*dataset, g.policy.Receive) {
		return err
	}
	have, err := g.site.Properties(ctx, []string{*dataset}, []string{"keystatus", "keylocation"})
	if err != nil {
		return err
	}
	if m := have[*dataset]; m["keystatus"].Value != "unavailable" || m["keylocation"].Value != "prompt" {
		return fmt.Errorf("the key of %s is in use, or it is said where it is: it stays as it is", *dataset)
	}
	return nil
}

// MakeEncryptionRoot is for copies whose key may be replaced, which it comes before.
func MakeEncryptionRoot(_ context.Context, g *Guard, dataset *string) error {
	if err := g.receivable(*dataset); err != nil {
		return err
	}
	if g.onlyAdded(*dataset) && !below(*dataset, g.policy.Rekeyed) {
		return fmt.Errorf("the key of %s stays as it is; --allow receive-rekey=DATASET in authorized_keys lets the source replace it", *dataset)
	}
	return nil
}

// Mount is for what a restore has brought, and for directories where it hides nothing.
// What it would hide is not for this key to know.
func Mount(ctx context.Context, g *Guard, dataset *string) error {
	if err := Restored(ctx, g, dataset); err != nil {
		return err
	}
	have, err := g.site.Properties(ctx, []string{*dataset}, []string{"mountpoint", "mounted"})
	if err != nil {
		return err
	}
	path := have[*dataset]["mountpoint"].Value
	if have[*dataset]["mounted"].Value == "yes" || !strings.HasPrefix(path, "/") {
		return nil
	}
	owner, err := hosts.RoleOf[hosts.Restorer](g.site)
	if err != nil {
		return err
	}
	found, err := owner.InUse(ctx, []string{path})
	if err == nil && found[path] != "" {
		err = fmt.Errorf("mounting %s would hide what is in its directory: look there, and mount it by hand", *dataset)
	}
	return err
}

// SetProperties gives back what keeps a copy from being changed and mounted.
func SetProperties(ctx context.Context, g *Guard, a *zfs.PropertyChange) error {
	for name, value := range a.Set {
		if name != "readonly" && name != "canmount" || zfs.CheckValue(name, value) != nil {
			return fmt.Errorf("the property %q may not be set to %q", cut(name), cut(value))
		}
	}
	for _, name := range a.Revert {
		if !slices.Contains([]string{"readonly", "canmount", zfs.FlagsProperty, zfs.RestoreProperty}, name) {
			return fmt.Errorf("the property %q may not be changed", cut(name))
		}
	}
	return Restored(ctx, g, &a.Dataset)
}

// PropertyNames tells of a change of properties.
func PropertyNames(a *zfs.PropertyChange) Account {
	out := Account{of: quote(cut(a.Dataset))}
	for _, name := range slices.Sorted(maps.Keys(a.Set)) {
		out.each = append(out.each, "set "+quote(name+"="+a.Set[name]))
	}
	for _, name := range a.Revert {
		out.each = append(out.each, "revert "+quote(name))
	}
	return out
}
