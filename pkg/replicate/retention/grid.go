package retention

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/plan"
	"zxfer/pkg/replicate/calendar"
)

// Grid is a retention policy. It keeps the newest Last snapshots, and the newest snapshot of each
// of the newest N hours, days … (ISO weeks) that have one. A snapshot is kept if any rule keeps
// it.
type Grid struct {
	// Timezone determines where hours, days … start.
	Timezone calendar.Zone `toml:"timezone,omitempty"`

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
	Names []string          `toml:"names"` // patterns
	Last  int               `toml:"last,omitempty"`
	Age   calendar.Duration `toml:"age,omitempty"`
	// Before excludes snapshots from that time on; zero excludes none.
	Before time.Time `toml:"before,omitempty"`
}

// Empty reports whether the grid has no rule.
func (g *Grid) Empty() bool {
	return len(g.Also) == 0 && g.Last|g.Hourly|g.Daily|g.Weekly|g.Monthly|g.Yearly == 0
}

// Point is a snapshot, as input of a grid.
type Point struct {
	Name string
	Time time.Time
	// Order is the createtxg; higher is newer. Clocks may be wrong, so Time decides only if Order
	// is equal.
	Order uint64
}

// Keep returns the points that the grid keeps, by name, with the rules ("daily, monthly").
//
// Keep is stable: a point that it keeps now was kept at all earlier times, so frequent pruning has
// the same result as a single one. The newest snapshot represents a period, so a period that has
// started always has one.
func (g *Grid) Keep(points []Point) map[string]string {
	kept := make(map[string]string, len(points))
	newestFirst := slices.Clone(points)
	slices.SortFunc(newestFirst, func(a, b Point) int {
		return cmp.Or(cmp.Compare(b.Order, a.Order), b.Time.Compare(a.Time), cmp.Compare(b.Name, a.Name))
	})
	for _, r := range g.Rules() {
		seen, left := map[int64]bool{}, r.Count
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
			kept[p.Name] = appendRule(kept[p.Name], r.Name)
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

const day = 24 * time.Hour

func appendRule(rules, rule string) string { return strings.TrimPrefix(rules+", "+rule, ", ") }

// Rule is a line of a grid. It keeps the newest snapshot of each of Count periods.
type Rule struct {
	Name   string
	Count  int
	period func(time.Time) int64 // returns the number of the period of a time in the grid's zone
	step   time.Duration         // at most a period, at least a third of one
}

// Rules returns the lines of the grid.
//
// A local day has 22 to 26 hours, and a clock change may leave half an hour of an hour. Therefore
// dates identify periods, and start times identify hours: an hour that the clock shows twice
// counts as two.
func (g *Grid) Rules() []Rule {
	return []Rule{
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

// filled returns points such that every rule has one in each of its periods from one time to
// another.
func (g *Grid) filled(from, now time.Time) []Point {
	out := []Point{{Time: from, Order: 1 << 63}}
	for _, r := range g.Rules() {
		at := now
		for i := 0; i <= 3*r.Count && at.After(from); i++ { // steps are shorter than periods
			out = append(out, Point{Time: at, Order: 1<<63 + uint64(at.Unix())})
			at = at.Add(-r.step)
		}
	}
	return out
}
