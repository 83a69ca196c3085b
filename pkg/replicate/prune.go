package replicate

import (
	"cmp"
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

// Removal is what retention makes of a dataset.
type Removal struct {
	Remove []zfs.Version
	// Untrusted are the names of snapshots whose dates are not believed.
	Untrusted []string
	// OverLimit is how many of Remove an earlier run kept, and neither the time that
	// passed since nor newer snapshots have overtaken.
	OverLimit int
	// Waiting tells that some stay only until more time has passed.
	Waiting bool
	// KeepReasons is why the others stay, by name.
	KeepReasons map[string]string
}

// Prunable returns the snapshots of a dataset that retention may remove: those
// that the job made or adopted and that are neither the newest of the dataset
// nor protected, by GUID, nor kept by the grid, counting all snapshots by their
// own dates or those alone whose dates are believed. protected says why. created
// are the times of adopted snapshots; one whose time is unknown stays. h learns
// from it.
//
// Counting the believed ones alone keeps what would be kept without the others:
// each that is left out leaves its place to an older one.
//
// That a snapshot is held, or has clones, is for the caller to find out.
func (g *Grid) Prunable(d *zfs.Dataset, s *Scope, created map[string]time.Time, protected map[uint64]string, h *History, now time.Time) Removal {
	out := Removal{KeepReasons: map[string]string{}}
	if g == nil {
		return out
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
	believed := h.judge(points, now)
	h.limitRate(believed, g.Last, now)
	byDate, kept, early := g.Keep(points), g.Keep(believed), map[string]bool{}
	for _, p := range believed {
		early[p.Name] = g.Last > 0 && now.Unix()-p.Time.Unix() < h.turn(g.Last)
	}
	latest, _ := d.Latest()
	gone := map[string]bool{}
	left := map[uint64]bool{}
	for _, order := range h.Left {
		left[order] = true
	}
	h.due = nil
	for _, p := range points {
		v := byName[p.Name]
		if at, known := h.Dates[p.Order]; known && at == untrusted {
			out.Untrusted = append(out.Untrusted, p.Name)
		}
		newest := ""
		if v.GUID == latest.GUID {
			newest = "newest"
		}
		if why := cmp.Or(kept[p.Name], byDate[p.Name], protected[v.GUID], newest); why != "" {
			out.KeepReasons[p.Name] = why
			continue
		}
		if early[p.Name] {
			out.Waiting, out.KeepReasons[p.Name] = true, "newer ones came too fast"
			continue
		}
		out.Remove = append(out.Remove, v)
		h.due = append(h.due, p.Order)
		gone[p.Name] = !left[p.Order] // that it goes now was decided before
	}
	out.OverLimit = g.overLimit(believed, gone, h.Kept, now)
	return out
}

// overLimit counts those of the believed points that go though an earlier run kept
// them (their order is at most last), and though they are not overtaken: the
// grid does not keep them even where nothing new has come, or would keep them
// whatever came since.
func (g *Grid) overLimit(believed []Point, gone map[string]bool, last uint64, now time.Time) int {
	var before []Point
	for _, p := range believed {
		if p.Order <= last {
			before = append(before, p)
		}
	}
	if len(gone) == 0 || len(before) == 0 {
		return 0
	}
	kept := g.Keep(before)
	byTime := *g
	byTime.Last = 0
	always := byTime.Keep(append(byTime.filled(before[len(before)-1].Time, now), before...))
	n := 0
	for _, p := range before {
		if gone[p.Name] && (kept[p.Name] == "" || always[p.Name] != "") {
			n++
		}
	}
	return n
}

// filled are points such that every period of every rule from a time to now has
// one, so far as the rule counts back.
func (g *Grid) filled(from, now time.Time) []Point {
	out := []Point{{Time: from, Order: 1 << 63}}
	for _, r := range g.rules() {
		at := now
		for i := 0; i <= 3*r.count && at.After(from); i++ { // steps are shorter than periods
			out = append(out, Point{Time: at, Order: 1<<63 + uint64(at.Unix())})
			at = at.Add(-r.step)
		}
	}
	return out
}
