package replicate

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// rule is one line of a grid: keep the newest of each of count periods.
type rule struct {
	name   string
	count  int
	period func(time.Time) string // names the period that holds a time
}

func (g *Grid) rules() []rule {
	return []rule{
		{"last", g.Last, nil},
		{"hourly", g.Hourly, func(t time.Time) string { return t.Format("2006-01-02T15") }},
		{"daily", g.Daily, func(t time.Time) string { return t.Format("2006-01-02") }},
		{"weekly", g.Weekly, func(t time.Time) string {
			year, week := t.ISOWeek()
			return fmt.Sprintf("%d-W%02d", year, week)
		}},
		{"monthly", g.Monthly, func(t time.Time) string { return t.Format("2006-01") }},
		{"yearly", g.Yearly, func(t time.Time) string { return t.Format("2006") }},
	}
}

// Point is a snapshot as retention sees it.
type Point struct {
	Name string
	Time time.Time
	// Order tells which is newer (createtxg): the higher. Time is that of a
	// clock, which may have been wrong; where Order is the same it decides.
	Order uint64
}

// Keep returns which of the points the grid keeps, by name, with the rules
// that do ("daily, monthly"). A nil grid keeps all.
//
// It is stable: what is kept now was kept at every time before, so that
// pruning at every run leaves what pruning once would. The newest snapshot
// stands for a period, so that a period once begun is never without.
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
		seen, left := map[string]bool{}, r.count
		for i, p := range newestFirst {
			if left == 0 {
				break
			}
			period := fmt.Sprint(i)
			if r.period != nil {
				period = r.period(p.Time.UTC())
			}
			if seen[period] {
				continue
			}
			seen[period], left = true, left-1
			if kept[p.Name] != "" {
				kept[p.Name] += ", "
			}
			kept[p.Name] += r.name
		}
	}
	return kept
}
