package authz

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// beingRestored permits an action on a dataset only while a restore is bringing it.
func beingRestored(ctx context.Context, g *Guard, dataset *string) error {
	if !within(*dataset, g.policy.Restored) {
		return fmt.Errorf("restoring %q is not permitted; to permit it, add --allow restore=DATASET in authorized_keys", clipName(*dataset))
	}
	have, err := g.host.Properties(ctx, []string{*dataset}, []string{zfs.RestoreProperty})
	if err != nil {
		return err
	}
	if !have[*dataset][zfs.RestoreProperty].Local() {
		return fmt.Errorf("%s is not part of a running restore", *dataset)
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
		return fmt.Errorf("the key of %s is loaded, or has a keylocation: it must not be changed", *dataset)
	}
	return g.checkTreeRoles(ctx, *dataset)
}

// mayMakeEncryptionRoot permits this for copies whose key may be replaced; it happens just before
// that.
func mayMakeEncryptionRoot(ctx context.Context, g *Guard, dataset *string) error {
	if err := g.checkReceivable(*dataset); err != nil {
		return err
	}
	if g.keepsVersions(*dataset) && !within(*dataset, g.policy.Rekeyed) {
		return fmt.Errorf("replacing the key of %s is not permitted; to permit it, add --allow receive-rekey=DATASET in authorized_keys", *dataset)
	}
	return g.checkTreeRoles(ctx, *dataset)
}

// mayMount permits mounting a restored dataset on a directory in which it hides nothing and which is the
// mountpoint of no other dataset. The refusal does not show what it would hide.
func mayMount(ctx context.Context, g *Guard, m *zfs.MountRequest) error {
	if m.Over || m.Trusted {
		return errors.New("mounting over files, or with setuid programs, is not permitted")
	}
	have, err := g.host.Properties(ctx, []string{m.Dataset}, []string{"mountpoint", "mounted", zfs.CanMountProperty})
	if err != nil {
		return err
	}
	p := have[m.Dataset]
	if !within(m.Dataset, g.policy.Restored) || !p[zfs.CanMountProperty].Local() { // restored, and not yet mounted
		if err := beingRestored(ctx, g, &m.Dataset); err != nil {
			return err
		}
	}
	path := p["mountpoint"].Value
	if p["mounted"].Value == "yes" || !strings.HasPrefix(path, "/") {
		return nil
	}
	all, err := g.host.Mountpoints(ctx)
	if err != nil {
		return err
	}
	found, err := g.host.InUse(ctx, []string{path})
	other := slices.ContainsFunc(all, func(o zfs.Mountpoint) bool { return o.At == path && o.Dataset != m.Dataset })
	if err == nil && (found[path] != "" || other) {
		err = fmt.Errorf("mounting %s would hide the files in its directory, or of another dataset: check them, and mount it manually", m.Dataset)
	}
	return err
}

// NoRoleChange is the reason why a restricted key cannot promote a copy or switch roles.
const NoRoleChange = "no grant of a restricted key permits a change of roles"

// maySetProperties permits making a restored dataset writable, recording the properties of the source on a copy,
// setting the access properties that a copy lacks, and removing the record of the direction from a source. Only
// OpMount sets canmount=on, after the mount. No grant permits a change of roles (zfs.RoleProperty).
func maySetProperties(ctx context.Context, g *Guard, a *zfs.PropertyChange) error {
	if isRecord, err := setsRecord(a); isRecord && within(a.Dataset, g.policy.Receive) {
		return cmp.Or(err, g.checkRole(ctx, a.Dataset))
	}
	if len(a.Set) > 0 && len(a.Revert) == 0 && setsAccess(a) {
		return g.checkAccess(ctx, a.Dataset)
	}
	if len(a.Set) == 0 && len(a.Revert) == 1 && a.Revert[0] == zfs.DirectionProperty && within(a.Dataset, g.policy.Send) {
		return nil // the next stream in the other direction compares block sizes again
	}
	for name, value := range a.Set {
		switch {
		case name == "readonly" && zfs.CheckValue(name, value) == nil:
		case name == "canmount" && (value == "noauto" || value == "off"):
		case name == zfs.CanMountProperty && value == "on":
		case name == zfs.RoleProperty:
			return errors.New(NoRoleChange)
		default:
			return fmt.Errorf("setting property %q to %q is not permitted", clipName(name), clipName(value))
		}
	}
	for _, name := range a.Revert {
		if !slices.Contains([]string{"readonly", zfs.FlagsProperty, zfs.RestoreProperty}, name) {
			return fmt.Errorf("changing property %q is not permitted", clipName(name))
		}
	}
	return beingRestored(ctx, g, &a.Dataset)
}

// setsRecord reports whether a change only sets or removes the records of a source on its copy. It returns an error
// if a record is invalid.
func setsRecord(a *zfs.PropertyChange) (is bool, err error) {
	for name, value := range a.Set {
		var invalid error
		switch name {
		case zfs.OriginProperty:
			_, invalid = zfs.ParseOrigin(value)
		case zfs.SettingsProperty:
			_, invalid = zfs.ParseSettings(value)
		default:
			return false, nil
		}
		err = cmp.Or(err, invalid)
	}
	for _, name := range a.Revert {
		if name != zfs.OriginProperty && name != zfs.SettingsProperty {
			return false, nil
		}
	}
	return len(a.Set)+len(a.Revert) > 0, err
}

// checkAccess permits setting access properties on read-only copies, and on datasets being restored. On others,
// acltype=off would let users read files that an ACL denies them.
func (g *Guard) checkAccess(ctx context.Context, dataset string) error {
	if !within(dataset, g.policy.Receive) {
		return beingRestored(ctx, g, &dataset)
	}
	have, err := g.host.Properties(ctx, []string{dataset}, []string{"readonly"})
	if err != nil {
		return err
	}
	if have[dataset]["readonly"].Value != "on" {
		return fmt.Errorf("%s is not read-only: its properties must not be changed", clipName(dataset))
	}
	return g.checkTreeRoles(ctx, dataset) // descendants inherit the values
}

// setsAccess reports whether a change only sets values that zfs.Dataset.Access may have.
func setsAccess(a *zfs.PropertyChange) bool {
	for name, value := range a.Set {
		if !slices.Contains(zfs.AccessProperties(), name) || (zfs.Carry{}).Check(zfs.Filesystem, name, value) != nil {
			return false
		}
	}
	return true
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
