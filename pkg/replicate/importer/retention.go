package importer

import (
	"time"

	"zxfer/pkg/replicate"
)

const day = 24 * time.Hour

// longest is the longest span that retention is imported with.
const longest = 100 * 365 * day

// rule is a line of a grid.
type rule struct {
	shortest time.Duration // of its periods
	count    func(*replicate.Grid) *int
}

// ruleOf is the rule for one snapshot in each span; false for spans shorter
// than an hour.
func ruleOf(span time.Duration) (rule, bool) {
	for _, r := range []rule{
		{365 * day, func(g *replicate.Grid) *int { return &g.Yearly }},
		{28 * day, func(g *replicate.Grid) *int { return &g.Monthly }},
		{7 * day, func(g *replicate.Grid) *int { return &g.Weekly }},
		{day, func(g *replicate.Grid) *int { return &g.Daily }},
		{time.Hour, func(g *replicate.Grid) *int { return &g.Hourly }},
	} {
		if span >= r.shortest {
			return r, true
		}
	}
	return rule{}, false
}

// reach makes the rule reach a span back at any date. The newest snapshot of the
// last period counted is to be that old: the period that it ends, and the one
// under way, come on top of those that the span holds.
func (r rule) reach(g *replicate.Grid, span time.Duration) {
	raise(r.count(g), int((span+r.shortest-1)/r.shortest)+2)
}

func raise(count *int, to int) { *count = min(max(*count, to), 100_000) }

// times is a span n times, at most the longest.
func times(n int, span time.Duration) time.Duration {
	return min(time.Duration(n), longest/span) * span
}
