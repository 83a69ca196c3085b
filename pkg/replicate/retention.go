package replicate

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// Grid is a retention policy. It keeps the newest Last snapshots, and the newest snapshot of each
// of the newest N hours, days … (ISO weeks) that have one. A snapshot is kept if any rule keeps
// it.
type Grid struct {
	// Timezone determines where hours, days … start.
	Timezone Zone `toml:"timezone,omitempty"`

	Last    int `toml:"last,omitempty"`
	Hourly  int `toml:"hourly,omitempty"`
	Daily   int `toml:"daily,omitempty"`
	Weekly  int `toml:"weekly,omitempty"`
	Monthly int `toml:"monthly,omitempty"`
	Yearly  int `toml:"yearly,omitempty"`
	// Also keeps more snapshots, by name, for example those of another tool.
	Also []Also `toml:"also,omitempty,inline"`
}

// Also keeps snapshots by name: the newest Last, and all that are at most Age older than the most
// recent snapshot in the scope.
type Also struct {
	Names []string `toml:"names"` // patterns
	Last  int      `toml:"last,omitempty"`
	Age   Duration `toml:"age,omitempty"`
	// Before excludes snapshots from that time on; zero excludes none.
	Before time.Time `toml:"before,omitempty"`
}

// Empty reports whether the grid has no rule.
func (g *Grid) Empty() bool {
	return len(g.Also) == 0 && g.Last|g.Hourly|g.Daily|g.Weekly|g.Monthly|g.Yearly == 0
}

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
	KeepReasons map[string]string
}

// Prunable returns the snapshots of a dataset that retention may destroy. It keeps the most recent
// snapshot, protected ones (by GUID, with the reason), and those outside the scope. It applies the
// grid twice, to all snapshots and to those with trusted dates, and keeps both results. An
// untrusted date thus never displaces a trusted snapshot. created has the times of adopted
// snapshots; those without a time are kept. It updates h.
//
// The caller must check for holds and clones.
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
	trusted := h.trustedPoints(points, now)
	h.limitRate(trusted, g.Last, now)
	byDate, kept, early := g.Keep(points), g.Keep(trusted), map[string]bool{}
	for _, p := range trusted {
		early[p.Name] = g.Last > 0 && now.Unix()-p.Time.Unix() < h.minAge(g.Last)
	}
	latest, _ := d.Latest()
	destroy := map[string]bool{}
	left := map[uint64]bool{}
	for _, order := range h.Left {
		left[order] = true
	}
	h.pending = nil
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
		h.pending = append(h.pending, p.Order)
		destroy[p.Name] = !left[p.Order] // an earlier run decided to destroy it
	}
	out.OverLimit = g.overLimit(trusted, destroy, h.Kept, now)
	return out
}

// Point is a snapshot, as input of a grid.
type Point struct {
	Name string
	Time time.Time
	// Order is the createtxg; higher is newer. Clocks may be wrong, so Time decides only if Order
	// is equal.
	Order uint64
}

// Keep returns the points that the grid keeps, by name, with the rules ("daily, monthly"). A nil
// grid keeps all.
//
// Keep is stable: a point that it keeps now was kept at all earlier times, so frequent pruning has
// the same result as a single one. The newest snapshot represents a period, so a period that has
// started always has one.
func (g *Grid) Keep(points []Point) map[string]string {
	kept := make(map[string]string, len(points))
	if g == nil {
		for _, p := range points {
			kept[p.Name] = "no retention is set"
		}
		return kept
	}
	newestFirst := slices.Clone(points)
	slices.SortFunc(newestFirst, func(a, b Point) int {
		return cmp.Or(cmp.Compare(b.Order, a.Order), b.Time.Compare(a.Time), cmp.Compare(b.Name, a.Name))
	})
	for _, r := range g.rules() {
		seen, left := map[int64]bool{}, r.count
		for i, p := range newestFirst {
			if left == 0 {
				break
			}
			period := int64(i)
			if r.period != nil {
				period = r.period(p.Time.In(g.Timezone.Location()))
			}
			if seen[period] {
				continue
			}
			seen[period], left = true, left-1
			kept[p.Name] = appendRule(kept[p.Name], r.name)
		}
	}
	for i := range g.Also {
		g.Also[i].keep(newestFirst, kept)
	}
	return kept
}

// keep adds the points that the rule keeps to kept.
func (a *Also) keep(newestFirst []Point, kept map[string]string) {
	left, names := a.Last, plan.ParsePatterns(a.Names)
	for _, p := range newestFirst {
		if !names.Match(p.Name) || !a.Before.IsZero() && !p.Time.Before(a.Before) {
			continue
		}
		if age := newestFirst[0].Time.Sub(p.Time); left <= 0 && (a.Age == 0 || age > time.Duration(a.Age)) {
			continue
		}
		left--
		kept[p.Name] = appendRule(kept[p.Name], "also")
	}
}

func appendRule(rules, rule string) string { return strings.TrimPrefix(rules+", "+rule, ", ") }

// rule is a line of a grid. It keeps the newest snapshot of each of count periods.
type rule struct {
	name   string
	count  int
	period func(time.Time) int64 // returns the number of the period of a time in the grid's zone
	step   time.Duration         // at most a period, at least a third of one
}

// rules returns the lines of the grid.
//
// A local day has 22 to 26 hours, and a clock change may leave half an hour of an hour. Therefore
// dates identify periods, and start times identify hours: an hour that the clock shows twice
// counts as two.
func (g *Grid) rules() []rule {
	return []rule{
		{"last", g.Last, nil, time.Hour},
		{"hourly", g.Hourly, func(t time.Time) int64 { return t.Unix() - int64(t.Minute()*60+t.Second()) }, time.Hour / 2},
		{"daily", g.Daily, func(t time.Time) int64 { return int64(t.Year()*1000 + t.YearDay()) }, day / 2},
		{"weekly", g.Weekly, func(t time.Time) int64 {
			year, week := t.ISOWeek()
			return int64(year*100 + week)
		}, 6 * day},
		{"monthly", g.Monthly, func(t time.Time) int64 { return int64(t.Year()*12) + int64(t.Month()) }, 27 * day},
		{"yearly", g.Yearly, func(t time.Time) int64 { return int64(t.Year()) }, 364 * day},
	}
}
