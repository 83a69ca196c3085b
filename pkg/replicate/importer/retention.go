package importer

import (
	"time"

	"zxfer/pkg/replicate"
)

const day = 24 * time.Hour

// longest is the maximum span of imported retention.
const longest = 100 * 365 * day

// rule is one period of a retention grid.
type rule struct {
	shortest time.Duration // shortest length of a period
	count    func(*replicate.Grid) *int
}

// ruleOf returns the rule that keeps one snapshot per span. It returns false for spans under an
// hour.
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

// reach raises the count of the rule so that it always covers span. The oldest and the current
// period are incomplete, so they are added to those within span.
func (r rule) reach(g *replicate.Grid, span time.Duration) {
	raise(r.count(g), int((span+r.shortest-1)/r.shortest)+2)
}

func raise(count *int, to int) { *count = min(max(*count, to), 100_000) }

// multiply returns n times span, at most longest.
func multiply(n int, span time.Duration) time.Duration {
	return min(time.Duration(n), longest/span) * span
}
