package authz

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"zxfer/pkg/zfs"
)

// checkRole refuses to change copies that became the source in a fail over. It asks the host, so
// the request cannot claim another role.
func (g *Guard) checkRole(ctx context.Context, datasets ...string) error {
	names := map[string]bool{}
	for _, dataset := range datasets {
		for name := dataset; name != ""; name = zfs.ParentOf(name) {
			names[name] = true
		}
	}
	if len(names) == 0 {
		return nil
	}
	have, err := g.host.Properties(ctx, slices.Sorted(maps.Keys(names)), []string{zfs.RoleProperty})
	if err != nil {
		return err
	}
	for _, dataset := range datasets {
		at, role, err := zfs.RoleOf(dataset, func(name string) map[string]zfs.Property { return have[name] })
		if err != nil {
			return err
		}
		if !role.Receives() {
			return fmt.Errorf("%s became the source %s: it must not be changed", at, role.Describe())
		}
	}
	return nil
}

// checkTreeRoles is checkRole for operations that move, destroy or lock datasets together with
// their descendants. It also refuses if a descendant became the source.
func (g *Guard) checkTreeRoles(ctx context.Context, datasets ...string) error {
	if err := g.checkRole(ctx, datasets...); err != nil {
		return err
	}
	for _, dataset := range datasets {
		if at, role, err := g.sourceBelow(ctx, dataset); err != nil {
			return err
		} else if at != "" {
			return fmt.Errorf("%s became the source %s: it must not be changed with %s", at, role.Describe(), dataset)
		}
	}
	return nil
}

// sourceBelow returns a descendant that became the source, or "" if there is none.
func (g *Guard) sourceBelow(ctx context.Context, dataset string) (at string, role zfs.Role, err error) {
	l, err := g.host.List(ctx, zfs.RolesBelow(dataset))
	if err != nil {
		return "", role, err
	}
	return zfs.SourceIn(&l)
}

// checkSnapshotRoles is checkRole for the datasets of snapshots and bookmarks. It skips datasets
// that may be sent, because the key of a source prunes it.
func (g *Guard) checkSnapshotRoles(ctx context.Context, versions []string) error {
	var datasets []string
	for _, n := range versions {
		if dataset, _, err := zfs.ParseVersion(n); err == nil && !within(dataset, g.policy.Send) && !g.isHealSnapshot(n) {
			datasets = append(datasets, dataset)
		}
	}
	slices.Sort(datasets)
	return g.checkRole(ctx, slices.Compact(datasets)...)
}
