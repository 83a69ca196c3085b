package replicate

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/plan"
)

const day = 24 * time.Hour

// rule is a line of a grid. It keeps the newest snapshot of each of count periods.
type rule struct {
	name   string
	count  int
	period func(time.Time) int64 // returns the number of the period of a time in the grid's zone
	step   time.Duration         // at most a period, at least a third of one
}

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
