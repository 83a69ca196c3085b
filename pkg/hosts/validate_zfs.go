package hosts

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"zxfer/pkg/printable"
	"zxfer/pkg/zfs"
)

// Replies of another host are untrusted. Its names become names on this host, and its sizes become
// memory. So every reply is checked against the request. These checks cover ZFS; validate.go has
// those for devices, connections and hosts.

// maxValue is the maximum length of a property value in bytes. User properties have up to 8 KiB;
// resume tokens are shorter.
const maxValue = 64 << 10

// checkListing returns an error if a listing does not answer q. It removes properties that no
// listing asks for.
func checkListing(q ListQuery, l *zfs.Listing) error {
	if l.Root != q.Dataset {
		return fmt.Errorf("got an answer about %q, expected %s", cut(l.Root), q.Dataset)
	}
	surveyed := append(zfs.SurveyProperties(), zfs.ChangedProperty, zfs.NewestProperty, zfs.LongnameProperty)
	surveyed = append(surveyed, q.User...)
	for _, d := range slices.Concat(l.Ancestors, l.Datasets) {
		if d == nil {
			return fmt.Errorf("the listing of %s contains a dataset without a name", q.Dataset)
		}
		if err := checkDataset(d, surveyed); err != nil {
			return err
		}
	}
	last := ""
	for _, d := range l.Ancestors {
		if !strings.HasPrefix(q.Dataset, d.Name+"/") || d.Name <= last {
			return fmt.Errorf("got %q as an ancestor of %s", d.Name, q.Dataset)
		}
		last = d.Name
	}
	only := map[string]bool{}
	for _, n := range q.Only {
		only[n] = true
	}
	seen := map[string]bool{}
	for _, d := range l.Datasets {
		wanted := d.Name == q.Dataset || q.Recursive && strings.HasPrefix(d.Name, q.Dataset+"/")
		if len(q.Only) > 0 {
			wanted = only[d.Name]
		}
		if !wanted {
			return fmt.Errorf("got %q, expected %s", d.Name, q.Dataset)
		}
		if seen[d.Name] {
			return fmt.Errorf("%q was listed twice", d.Name)
		}
		seen[d.Name] = true
	}
	p := &l.Pool
	if p.Name != "" && p.Name != zfs.PoolOf(q.Dataset) || l.Started < 0 {
		return fmt.Errorf("got pool %[2]q for %[1]s", q.Dataset, cut(p.Name))
	}
	for _, m := range []map[string]string{p.Properties, p.Features} {
		maps.DeleteFunc(m, func(name, value string) bool { return zfs.CheckProperty(name) != nil || len(value) > maxValue })
	}
	return nil
}

// checkDataset checks one listed dataset on its own.
func checkDataset(d *zfs.Dataset, surveyed []string) error {
	if _, err := zfs.ParseDataset(d.Name); err != nil {
		return err
	}
	if d.Type != zfs.Filesystem && d.Type != zfs.Volume {
		return fmt.Errorf("got the type %[2]q for %[1]s", d.Name, cut(string(d.Type)))
	}
	if d.NewestOnly && len(d.Versions) > 1 {
		return fmt.Errorf("got %d most recent snapshots of %s", len(d.Versions), d.Name)
	}
	for _, v := range d.Versions {
		if of, _, err := zfs.ParseVersion(v.In(d.Name)); err != nil {
			return err
		} else if of != d.Name {
			return fmt.Errorf("got %q as a snapshot or bookmark of %s", cut(v.Short()), d.Name)
		}
	}
	ordered := slices.Clone(d.Versions)
	zfs.SortVersions(ordered)
	if !slices.Equal(ordered, d.Versions) {
		return fmt.Errorf("the snapshots of %s are out of order", d.Name)
	}
	names, snapshots := make(map[string]bool, len(d.Versions)), make(map[uint64]bool, len(d.Versions))
	for _, v := range d.Versions {
		switch {
		case v.GUID == 0 || v.CreateTXG == 0: // plans take 0 for "none"
			return fmt.Errorf("got GUID %[2]d and createtxg %[3]d for %[1]s", v.In(d.Name), v.GUID, v.CreateTXG)
		case names[v.Short()] || v.Kind == zfs.Snapshot && snapshots[v.GUID]:
			return fmt.Errorf("%s was listed twice", v.In(d.Name))
		}
		names[v.Short()] = true
		if v.Kind == zfs.Snapshot {
			snapshots[v.GUID] = true
		}
	}
	if d.Properties == nil {
		d.Properties = map[string]zfs.Property{}
	}
	return checkValues(d.Name, d.Properties, surveyed)
}

// checkProperties returns an error if the reply has names that were not requested. It removes
// properties that were not requested.
func checkProperties(names, properties []string, answer map[string]map[string]zfs.Property) error {
	if err := checkAbout(names, answer); err != nil {
		return err
	}
	for name, m := range answer {
		if err := checkValues(name, m, properties); err != nil {
			return err
		}
	}
	return nil
}

// checkValues checks the properties of one name and removes those that were not requested. If asked
// is empty, all properties are kept.
func checkValues(of string, m map[string]zfs.Property, asked []string) error {
	maps.DeleteFunc(m, func(name string, _ zfs.Property) bool {
		return zfs.CheckProperty(name) != nil || len(asked) > 0 && !slices.Contains(asked, name)
	})
	for name, p := range m {
		if len(p.Value) > maxValue || len(p.Source) > maxValue {
			return fmt.Errorf("%s of %s has %d bytes", name, of, max(len(p.Value), len(p.Source)))
		}
	}
	return nil
}

// checkHolds returns an error if the reply has snapshots that were not requested, or invalid tags.
func checkHolds(snapshots []string, answer map[string][]string) error {
	if err := checkAbout(snapshots, answer); err != nil {
		return err
	}
	for name, tags := range answer {
		for _, t := range tags {
			if t == "" || len(t) > zfs.MaxName || !printable.IsText(t) {
				return fmt.Errorf("got %q as a hold of %s", cut(t), name)
			}
		}
	}
	return nil
}

// checkAbout returns an error if the reply has names that were not requested.
func checkAbout[V any](names []string, answer map[string]V) error {
	asked := make(map[string]bool, len(names))
	for _, n := range names {
		asked[n] = true
	}
	for n := range answer {
		if !asked[n] {
			return fmt.Errorf("got an answer about %q, which was not requested", cut(n))
		}
	}
	return nil
}

// checkDamage returns an error if d is not a valid list of errors of the dataset.
func checkDamage(dataset string, d *zfs.Damage) error {
	if len(d.Objects) > zfs.MaxDamage || d.More < 0 || d.Elsewhere < 0 || d.PoolErrors < 0 || len(d.Reason) > 4096 || d.Scan.Errors < 0 || !(d.Scan.Percent >= 0 && d.Scan.Percent <= 100) || len(d.Scan.Text)+len(d.NoBlocks) > 4096 ||
		strings.ContainsFunc(d.Scan.Text+d.Reason+d.NoBlocks, unicode.IsControl) {
		return fmt.Errorf("the damage report of %s is out of bounds", dataset)
	}
	if err := checkBlocks(dataset, d); err != nil {
		return err
	}
	for _, t := range d.Objects {
		if len(t.Shown)+len(t.Path)+len(t.Object) > 3*4096 {
			return fmt.Errorf("the damage report of %s is too long", dataset)
		}
		if strings.ContainsFunc(t.Shown+t.Path+t.Object, unicode.IsControl) {
			return fmt.Errorf("the damage report of %s contains control characters", dataset)
		}
		if t.Snapshot != "" {
			if err := zfs.CheckComponent(t.Snapshot); err != nil {
				return err
			}
		}
		if t.Dataset != "" && t.Dataset != dataset && !strings.HasPrefix(t.Dataset, dataset+"/") {
			return fmt.Errorf("got damage of %q, expected %s", cut(t.Dataset), dataset)
		}
		if t.Dataset == "" {
			continue
		}
		if _, err := zfs.ParseDataset(t.Dataset); err != nil {
			return err
		}
	}
	return nil
}

// checkBlocks returns an error if the damaged blocks of d are not a valid list for the dataset. Their
// ranges were checked when they were decoded.
func checkBlocks(dataset string, d *zfs.Damage) error {
	ranges, last := 0, ""
	for _, b := range d.Blocks {
		if b.Dataset != dataset && !strings.HasPrefix(b.Dataset, dataset+"/") || b.Dataset <= last {
			return fmt.Errorf("got damaged blocks of %q, expected %s", cut(b.Dataset), dataset)
		}
		if _, err := zfs.ParseDataset(b.Dataset); err != nil {
			return err
		}
		for _, s := range b.Snapshots {
			if err := zfs.CheckComponent(s); err != nil {
				return err
			}
		}
		last = b.Dataset
		ranges += len(b.Data) + len(b.Snapshots)
	}
	if ranges > 2*zfs.MaxBlockRanges || len(d.Blocks) > zfs.MaxBlockRanges {
		return fmt.Errorf("the damage report of %s is too long", dataset)
	}
	return nil
}

// checkDrillClone returns an error if clone is not the name of a drill clone in the snapshot's
// pool.
func checkDrillClone(a zfs.DrillClone, clone *string) error {
	if _, err := zfs.ParseDataset(*clone); err != nil {
		return err
	}
	if !zfs.IsDrillClone(*clone) || zfs.PoolOf(*clone) != zfs.PoolOf(a.Snapshot) {
		return fmt.Errorf("got %[2]q as the clone of %[1]s", a.Snapshot, cut(*clone))
	}
	return nil
}

// checkDrillResult returns an error if the output is longer than a command may write.
func checkDrillResult(_ zfs.DrillCommand, r *zfs.DrillResult) error {
	if len(r.Output) > zfs.MaxDrillOutput || len(r.Failure) > zfs.MaxDrillOutput {
		return fmt.Errorf("a command printed %d bytes", len(r.Output)+len(r.Failure))
	}
	return plausible(r, shown)
}
