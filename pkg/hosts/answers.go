package hosts

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/printable"
	"zxfer/pkg/zfs"
)

// What another host answers is taken for granted by who asked: names in it
// become names on this host, sizes become memory, and an answer is as long as
// the question. So a Site of another host holds its answers against the
// questions. Answers about devices, links and hosts are in answersof.go.

// maxValue bounds the value of a property, in bytes: user properties have up to
// 8 KiB, and resume tokens are shorter.
const maxValue = 64 << 10

// CheckListing refuses a listing that is no answer to q. It leaves out
// properties that no survey asks for.
func CheckListing(q ListQuery, l *zfs.Listing) error {
	if l.Root != q.Dataset {
		return fmt.Errorf("it is about %q, and %s was asked for", cut(l.Root), q.Dataset)
	}
	surveyed := append(zfs.SurveyProperties(), zfs.ChangedProperty, zfs.NewestProperty)
	surveyed = append(surveyed, q.User...)
	for _, d := range slices.Concat(l.Ancestors, l.Datasets) {
		if d == nil {
			return fmt.Errorf("the listing of %s has a dataset without a name", q.Dataset)
		}
		if err := checkDataset(d, surveyed); err != nil {
			return err
		}
	}
	last := ""
	for _, d := range l.Ancestors {
		if !strings.HasPrefix(q.Dataset, d.Name+"/") || d.Name <= last {
			return fmt.Errorf("%q was listed as a dataset above %s", d.Name, q.Dataset)
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
			return fmt.Errorf("%q was listed, and %s was asked for", d.Name, q.Dataset)
		}
		if seen[d.Name] {
			return fmt.Errorf("%q was listed twice", d.Name)
		}
		seen[d.Name] = true
	}
	p := &l.Pool
	if p.Name != "" && p.Name != zfs.PoolOf(q.Dataset) || l.Began < 0 {
		return fmt.Errorf("the pool of %s was said to be %q", q.Dataset, cut(p.Name))
	}
	for _, m := range []map[string]string{p.Properties, p.Features} {
		maps.DeleteFunc(m, func(name, value string) bool { return zfs.CheckProperty(name) != nil || len(value) > maxValue })
	}
	return nil
}

// checkDataset judges a listed dataset by itself.
func checkDataset(d *zfs.Dataset, surveyed []string) error {
	if _, err := zfs.ParseDataset(d.Name); err != nil {
		return err
	}
	if d.Type != zfs.Filesystem && d.Type != zfs.Volume {
		return fmt.Errorf("%s was listed as a %q", d.Name, cut(string(d.Type)))
	}
	if d.NewestOnly && len(d.Versions) > 1 {
		return fmt.Errorf("%d versions of %s were listed as the newest one", len(d.Versions), d.Name)
	}
	for _, v := range d.Versions {
		if of, _, err := zfs.ParseVersion(v.In(d.Name)); err != nil {
			return err
		} else if of != d.Name {
			return fmt.Errorf("%q was listed as a version of %s", cut(v.Short()), d.Name)
		}
	}
	ordered := slices.Clone(d.Versions)
	zfs.SortVersions(ordered)
	if !slices.Equal(ordered, d.Versions) {
		return fmt.Errorf("the versions of %s are out of order", d.Name)
	}
	names, snapshots := make(map[string]bool, len(d.Versions)), make(map[uint64]bool, len(d.Versions))
	for _, v := range d.Versions {
		switch {
		case v.GUID == 0 || v.CreateTXG == 0: // which plans take for "none"
			return fmt.Errorf("%s was listed with the GUID %d and the createtxg %d", v.In(d.Name), v.GUID, v.CreateTXG)
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

// checkValues judges the properties of one name, and leaves out those that were
// not asked for. Without asked for names it is those that are set.
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

// CheckProperties refuses properties of names that were not asked about, and
// leaves out those that were not asked for.
func CheckProperties(names, properties []string, answer map[string]map[string]zfs.Property) error {
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

// CheckHolds refuses tags of snapshots that were not asked about, and tags that
// are none.
func CheckHolds(snapshots []string, answer map[string][]string) error {
	if err := checkAbout(snapshots, answer); err != nil {
		return err
	}
	for name, tags := range answer {
		for _, t := range tags {
			if t == "" || len(t) > zfs.MaxName || !printable.IsText(t) {
				return fmt.Errorf("%q was listed as a hold of %s", cut(t), name)
			}
		}
	}
	return nil
}

// checkAbout refuses an answer about names that were not asked about.
func checkAbout[V any](names []string, answer map[string]V) error {
	asked := make(map[string]bool, len(names))
	for _, n := range names {
		asked[n] = true
	}
	for n := range answer {
		if !asked[n] {
			return fmt.Errorf("it is about %q, which was not asked about", cut(n))
		}
	}
	return nil
}
