package plan

import (
	"slices"

	"zxfer/pkg/zfs"
)

// WithSnapshot returns the full names of the snapshots named name.
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

// Simulate returns a copy of a listing with the snapshots that are about to be taken, so that a
// plan is complete before anything changes. name returns a dataset's new snapshot, or "".
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

// Predict returns the target listing expected after the plan runs. Arriving snapshots become
// the most recent ones. source is the listing that the plan was made from.
func (p *Plan) Predict(source, target zfs.Listing) zfs.Listing {
	from := source.ByName()
	target.Datasets = slices.Clone(target.Datasets)
	for _, d := range p.Datasets {
		if len(d.Steps) == 0 {
			continue
		}
		counterpart := &zfs.Dataset{Name: d.Target, Type: d.Type}
		i := slices.IndexFunc(target.Datasets, func(t *zfs.Dataset) bool { return t.Name == d.Target })
		if i < 0 {
			i, target.Datasets = len(target.Datasets), append(target.Datasets, counterpart)
		} else {
			*counterpart = *target.Datasets[i]
		}
		counterpart.Versions = slices.Clone(counterpart.Versions)
		for _, v := range from[d.Source].Snapshots() { // oldest first
			if arrives(d, v.Name) {
				v.CreateTXG = nextTXG(counterpart)
				counterpart.Versions = append(counterpart.Versions, v)
			}
		}
		target.Datasets[i] = counterpart
	}
	return target
}

// nextTXG returns a CreateTXG greater than in all versions of a dataset.
func nextTXG(d *zfs.Dataset) uint64 {
	next := uint64(1)
	for _, have := range d.Versions {
		next = max(next, have.CreateTXG+1)
	}
	return next
}
