package retention

import (
	"cmp"
	"time"

	"zxfer/pkg/zfs"
)

// Removal is the retention decision for a dataset.
type Removal struct {
	Remove []zfs.Version
	// Untrusted are names of snapshots with untrusted dates.
	Untrusted []string
	// OverLimit is the number of snapshots in Remove that an earlier run kept and that neither
	// time nor newer snapshots supersede.
	OverLimit int
	// Waiting means that some snapshots are kept only until more time has passed.
	Waiting bool
	// KeepReasons holds the reasons to keep the other snapshots, by name.
	KeepReasons map[string]Reason
}

// Prunable returns the snapshots of a dataset that retention may destroy. It keeps the most recent
// snapshot, protected ones (by GUID, with the reason), and those without a date, which are outside the
// scope of the job or have an unknown time. It applies the grid twice, to all snapshots and to those with
// trusted dates, and keeps both results. An untrusted date thus never displaces a trusted snapshot. It
// updates h.
//
// The caller must check for holds and clones.
func (g *Grid) Prunable(d *zfs.Dataset, date func(snapshot string) (time.Time, bool), protected map[uint64]Reason, h *History, now time.Time) Removal {
	out := Removal{KeepReasons: map[string]Reason{}}
	if g == nil {
		return out
	}
	var points []Point
	byName := map[string]zfs.Version{}
	for _, v := range d.Snapshots() {
		at, known := date(v.Name)
		if !known {
			continue
		}
		points = append(points, Point{Name: v.Name, Time: at, Order: v.CreateTXG})
		byName[v.Name] = v
	}
	trusted := h.trustedPoints(points, now)
	h.limitRate(trusted, g.Last, now)
	byDate, kept, early := g.Keep(points), g.Keep(trusted), map[string]bool{}
	for _, p := range trusted {
		early[p.Name] = g.Last > 0 && now.Unix()-p.Time.Unix() < h.minAge(g.Last)
	}
	latest, _ := d.Latest()
	destroy := map[string]bool{}
	left := map[uint64]bool{}
	for _, order := range h.ToDestroy {
		left[order] = true
	}
	h.pending = nil
	for _, p := range points {
		v := byName[p.Name]
		if at, known := h.Dates[p.Order]; known && at == untrusted {
			out.Untrusted = append(out.Untrusted, p.Name)
		}
		newest := Reason{}
		if v.GUID == latest.GUID {
			newest.Kind = MostRecent
		}
		if why := cmp.Or(byRules(kept[p.Name]), byRules(byDate[p.Name]), protected[v.GUID], newest); why.Kind != NoReason {
			out.KeepReasons[p.Name] = why
			if why.Kind == NotSentOn && newest.Kind == NoReason && !early[p.Name] { // it is due, like one with a hold
				h.pending = append(h.pending, p.Order)
				destroy[p.Name] = !left[p.Order]
			}
			continue
		}
		if early[p.Name] {
			out.Waiting, out.KeepReasons[p.Name] = true, Reason{Kind: TooFast}
			continue
		}
		out.Remove = append(out.Remove, v)
		h.pending = append(h.pending, p.Order)
		destroy[p.Name] = !left[p.Order] // an earlier run decided to destroy it
	}
	out.OverLimit = g.overLimit(trusted, destroy, h.Kept, now)
	return out
}

// byRules returns the reason that rules of the grid are, "" = none.
func byRules(rules string) Reason {
	if rules == "" {
		return Reason{}
	}
	return Reason{Kind: KeptByRules, Of: rules}
}

// overLimit counts the points to destroy that an earlier run kept (order at most last) and that
// are not superseded: the grid destroys them even without newer snapshots, or would keep them
// regardless of newer ones.
func (g *Grid) overLimit(trusted []Point, destroy map[string]bool, last uint64, now time.Time) int {
	var before []Point
	for _, p := range trusted {
		if p.Order <= last {
			before = append(before, p)
		}
	}
	if len(destroy) == 0 || len(before) == 0 {
		return 0
	}
	kept := g.Keep(before)
	byTime := *g
	byTime.Last = 0
	always := byTime.Keep(append(byTime.filled(before[len(before)-1].Time, now), before...))
	n := 0
	for _, p := range before {
		if destroy[p.Name] && (kept[p.Name] == "" || always[p.Name] != "") {
			n++
		}
	}
	return n
}
