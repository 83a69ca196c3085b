package plan

import "zxfer/pkg/zfs"

// Taken are the full names of the snapshots of a listing that have a name.
func Taken(l zfs.Listing, name string) (out []string) {
	for _, d := range l.Datasets {
		for _, v := range d.Snapshots() {
			if v.Name == name {
				out = append(out, v.In(d.Name))
			}
		}
	}
	return out
}

// Pretend adds snapshots that are about to be taken to a copy of a listing, so
// that a plan is complete before anything is changed. name tells that of a
// dataset's snapshot, "" for none.
func Pretend(l zfs.Listing, name func(dataset string) string) zfs.Listing {
	all := l.Datasets
	l.Datasets = make([]*zfs.Dataset, len(all))
	for i, d := range all {
		l.Datasets[i] = d
		if snapshot := name(d.Name); snapshot != "" {
			c := *d
			v := zfs.Version{Kind: zfs.Snapshot, Name: snapshot, GUID: ^uint64(i), CreateTXG: 1}
			for _, have := range d.Versions {
				v.CreateTXG = max(v.CreateTXG, have.CreateTXG+1)
			}
			c.Versions = append(append([]zfs.Version{}, d.Versions...), v)
			l.Datasets[i] = &c
		}
	}
	return l
}
