package replicate

import (
	"time"

	"zxfer/pkg/zfs"
)

// Adopted are the snapshots of a dataset that the job adopted: retention needs
// to be told when they were taken.
func (s *Scope) Adopted(d *zfs.Dataset) []string {
	var out []string
	for _, v := range d.Snapshots() {
		if _, own := s.Own(v.Name); !own && s.Has(v.Name) {
			out = append(out, v.Name)
		}
	}
	return out
}

// Count is how many snapshots of a dataset are the job's concern.
func (s *Scope) Count(d *zfs.Dataset) int {
	n := 0
	for _, v := range d.Versions {
		if v.Kind == zfs.Snapshot && s.Has(v.Name) {
			n++
		}
	}
	return n
}

// Prunable returns the snapshots of a dataset that retention may remove:
// those that the job made or adopted, that the grid does not keep, and that
// are neither the newest of the dataset nor protected, by GUID. created are
// the times of adopted snapshots; one whose time is unknown stays.
//
// That a snapshot is held, or has clones, is for the caller to find out.
func (g *Grid) Prunable(d *zfs.Dataset, s *Scope, created map[string]time.Time, protected map[uint64]bool) []zfs.Version {
	if g == nil {
		return nil
	}
	var points []Point
	byName := map[string]zfs.Version{}
	for _, v := range d.Snapshots() {
		at, own := s.Own(v.Name)
		if !own {
			var known bool
			if at, known = created[v.Name]; !known || !s.Has(v.Name) {
				continue
			}
		}
		points = append(points, Point{Name: v.Name, Time: at, Order: v.CreateTXG})
		byName[v.Name] = v
	}
	latest, _ := d.Latest()
	kept := g.Keep(points)
	var out []zfs.Version
	for _, p := range points {
		v := byName[p.Name]
		if kept[p.Name] == "" && v.GUID != latest.GUID && !protected[v.GUID] {
			out = append(out, v)
		}
	}
	return out
}

// Base is the newest snapshot of a target's dataset that the source still has
// as a snapshot or a bookmark: the base of the next increment, which neither
// side may lose. By GUID; false where there is none.
func Base(source, target *zfs.Dataset) (there zfs.Version, ok bool) {
	have := make(map[uint64]bool, len(source.Versions))
	for _, v := range source.Versions {
		have[v.GUID] = true
	}
	for _, v := range target.Snapshots() {
		if have[v.GUID] {
			there, ok = v, true
		}
	}
	return there, ok
}
