package failover

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/zfs"
)

// planSettings adds to the properties of the copies those settings of their source that restrict: limits, and
// zfs.Dataset.Access. It notes the others, which the administrator decides on.
func (f *failover) planSettings(all []*takenOver) {
	byName := f.listed.ByName()
	gaps := zfs.NewAccessGaps(byName)
	for _, c := range all {
		set := gaps.Of(c.settings.Source(c.Type), c.Name, func(string) bool { return false })
		var open []string
		for _, name := range zfs.SettingsNames() {
			want := c.settings[name]
			switch {
			case want == "" || !zfs.Settable(c.Type, name) || c.Get(name) == want || set[name] == want:
			case slices.Contains(zfs.AccessProperties(), name):
				if (zfs.Carry{}).Check(c.Type, name, want) != nil { // it grants rights
					open = append(open, name+"="+want)
				}
			case slices.Contains(zfs.RestrictingSettings(), name) && f.fitsLimit(c.Dataset, name, want):
				set[name] = want
			default:
				open = append(open, name+"="+want)
			}
		}
		for name, want := range set {
			_, exists := c.Properties[name]
			feature, root := zfs.FeatureOf(name, want), f.listed.RootOf(c.Dataset)
			locked := name == zfs.LongnameProperty && c.Encrypted() && (root == nil || !root.KeyLoaded())
			if !exists || locked || feature != "" && len(f.listed.Pool.Features) > 0 && !f.listed.Pool.HasFeature(feature) {
				delete(set, name)
				open = append(open, name+"="+want)
			}
		}
		for name, want := range set {
			c.set[name] = want
		}
		if slices.Sort(open); len(open) > 0 {
			f.note("%s: not set on the new source: %s; its source had them", c.Name, strings.Join(open, ", "))
		}
	}
}

// fitsLimit reports whether a recorded limit may be set: the copy has no local limit, and its data fits.
func (f *failover) fitsLimit(d *zfs.Dataset, name, want string) bool {
	if have := d.Get(name); have != "" && !zfs.Unlimited(name, have) {
		return false
	}
	used := map[string]string{"quota": "used", "refquota": "referenced"}[name]
	if used == "" {
		return true
	}
	limit, err := strconv.ParseUint(want, 10, 64)
	has, failed := strconv.ParseUint(d.Get(used), 10, 64)
	return cmp.Or(err, failed) == nil && has < limit
}
