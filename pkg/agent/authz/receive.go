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

// checkReceive checks the target of a stream and adds the properties that keep it unmounted. A
// zfs.Gate checks the content, as in every receive.
func (g *Guard) checkReceive(ctx context.Context, r *zfs.ReceiveSpec) error {
	if r.Corrective {
		return g.checkCorrective(r)
	}
	if err := g.checkReceivable(r.Target); err != nil {
		return err
	}
	if !within(r.Target, g.policy.Restored) {
		if err := g.checkRole(ctx, r.Target); err != nil {
			return err
		}
	}
	if r.Rollback {
		return errors.New("a receive with rollback (-F) would destroy data")
	}
	if r.Origin != "" {
		if err := g.checkSnapshots([]string{r.Origin}, g.policy.receivable(), "origin"); err != nil {
			return err
		}
	}
	// a new dataset or clone, which has no local properties
	first := r.Arrival.Base == 0 || r.Origin != ""
	restored := within(r.Target, g.policy.Restored)
	if first && restored {
		whole, err := g.isComplete(ctx, r.Target)
		if err != nil {
			return err
		}
		first = !whole
	}
	if err := g.checkProperties(r, first && restored); err != nil {
		return err
	}
	if slices.ContainsFunc(r.Carried, func(name string) bool { return slices.Contains(zfs.AccessProperties(), name) }) {
		if whole, err := g.isComplete(ctx, r.Target); err != nil || whole {
			return cmp.Or(err, fmt.Errorf("%s exists: its access properties must not be changed by a stream", clipName(r.Target)))
		}
	}
	if g.keepsVersions(r.Target) && !within(r.Target, g.policy.Rekeyed) {
		r.KeepKey = true
	}
	if r.Arrival.Raw && !r.KeepKey {
		var err error
		if r.KeepKey, err = g.locksSource(ctx, r.Target); err != nil {
			return err
		}
	}
	// A new dataset must not be mounted, even if the client did not ask for that.
	if first {
		forced := map[string]string{"readonly": "on"}
		if !r.Arrival.Volume {
			forced["canmount"] = "noauto"
		}
		maps.Copy(forced, r.Set)
		r.Set = forced
	}
	return nil
}

// locksSource reports whether another key of a dataset would lock a descendant that became the source.
func (g *Guard) locksSource(ctx context.Context, dataset string) (bool, error) {
	have, err := g.host.Properties(ctx, []string{dataset}, []string{"encryptionroot"})
	if err != nil || have[dataset]["encryptionroot"].Value != dataset {
		return false, err
	}
	at, _, err := g.sourceBelow(ctx, dataset)
	return at != "", err
}

// checkProperties checks the properties that a receive sets. All come from another host, even
// if the request denies it, and the local administrator has named none for this key.
func (g *Guard) checkProperties(r *zfs.ReceiveSpec, restore bool) error {
	r.Carried, r.Carry = nil, zfs.Carry{All: restore}
	t := zfs.Filesystem
	if r.Arrival.Volume {
		t = zfs.Volume
	}
	may := allowedProperties(restore)
	for _, name := range slices.Sorted(maps.Keys(r.Set)) {
		value := r.Set[name]
		if ok := may[name]; ok != nil && ok(value) {
			continue
		}
		if err := r.Carry.Check(t, name, value); err != nil {
			return fmt.Errorf("the sender must not set property %q to %q: %w; the administrator can set it on %s",
				clipName(name), clipName(value), err, g.policy.receivable()[0])
		}
		r.Carried = append(r.Carried, name)
	}
	return nil
}

// allowedProperties returns the properties that zxfer itself sets on a receive, with a check of
// each value. zfs.Carry checks the source's own properties.
func allowedProperties(restore bool) map[string]func(string) bool {
	out := map[string]func(string) bool{
		"readonly":            oneOf("on"),
		"canmount":            oneOf("noauto", "off"),
		"encryption":          oneOf("off"), // for unencrypted data below an encrypted copy
		zfs.FlagsProperty:     isPlainValue,
		zfs.DirectionProperty: func(v string) bool { _, err := zfs.ParseDirection(v); return err == nil },
	}
	if restore {
		out[zfs.RestoreProperty] = oneOf("on")
	}
	return out
}

func oneOf(values ...string) func(string) bool {
	return func(v string) bool { return slices.Contains(values, v) }
}

// isPlainValue reports whether a value consists of at most 32 letters, digits and "-".
func isPlainValue(v string) bool {
	return v != "" && len(v) <= 32 && strings.Trim(v, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") == ""
}

// isComplete reports whether a dataset exists and is not a partial receive. A complete dataset
// keeps its properties, so the request cannot claim a first receive.
func (g *Guard) isComplete(ctx context.Context, dataset string) (bool, error) {
	have, err := g.host.Properties(ctx, []string{dataset}, []string{"type", "inconsistent"})
	if err != nil {
		return false, err
	}
	found := have[dataset]
	return found != nil && found["inconsistent"].Value != "1", nil
}
