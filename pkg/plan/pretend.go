package plan

import (
	"slices"

	"zxfer/pkg/zfs"
)

// WithSnapshot are the full names of the snapshots of a listing that have a name.
func WithSnapshot(l zfs.Listing, name string) (out []string) {
	for _, d := range l.Datasets {
		for _, v := range d.Snapshots() {
			if v.Name == name {
				out = append(out, v.In(d.Name))
			}
		}
	}
	return out
}

// Simulate adds snapshots that are about to be taken to a copy of a listing, so
// that a plan is complete before anything is changed. name tells that of a
// dataset's snapshot, "" for none.
func Simulate(l zfs.Listing, name func(dataset string) string) zfs.Listing {
	all := l.Datasets
	l.Datasets = make([]*zfs.Dataset, len(all))
	for i, d := range all {
		l.Datasets[i] = d
		if snapshot := name(d.Name); snapshot != "" {
			c := *d
			v := zfs.Version{Kind: zfs.Snapshot, Name: snapshot, GUID: ^uint64(i), CreateTXG: nextTXG(d), Pretended: true}
			c.Versions = append(append([]zfs.Version{}, d.Versions...), v)
			l.Datasets[i] = &c
		}
	}
	return l
}

// Predict returns a copy of the target's listing as it will be once the plan was
// carried out: what arrives is what its dataset has newest. source is what the plan
// was made by.
func (p *Plan) Predict(source, target zfs.Listing) zfs.Listing {
	from := source.ByName()
	target.Datasets = slices.Clone(target.Datasets)
	for _, d := range p.Datasets {
		if len(d.Steps) == 0 {
			continue
		}
		there := &zfs.Dataset{Name: d.Target, Type: d.Type}
		i := slices.IndexFunc(target.Datasets, func(t *zfs.Dataset) bool { return t.Name == d.Target })
		if i < 0 {
			i, target.Datasets = len(target.Datasets), append(target.Datasets, there)
		} else {
			*there = *target.Datasets[i]
		}
		there.Versions = slices.Clone(there.Versions)
		for _, v := range from[d.Source].Snapshots() { // oldest first
			if arrives(d, v.Name) {
				v.CreateTXG = nextTXG(there)
				there.Versions = append(there.Versions, v)
			}
		}
		target.Datasets[i] = there
	}
	return target
}

// nextTXG is newer than all that a dataset has.
func nextTXG(d *zfs.Dataset) uint64 {
	next := uint64(1)
	for _, have := range d.Versions {
		next = max(next, have.CreateTXG+1)
	}
	return next
}
