package importer

import (
	"time"

	"zxfer/pkg/replicate"
)

// adoptedFrom are the names of sanoid's own snapshots: others it does not see.
const adoptedFrom = "autosnap_*ly"

// kind is one of sanoid's kinds of snapshots.
//
// https://github.com/jimsalterjrs/sanoid/blob/v2.1.0/sanoid (prune_snapshots)
type kind struct {
	name   string
	period time.Duration
	count  func(*replicate.Grid) *int
}

func (p *policy) kinds() ([]kind, error) {
	often, err := p.number("frequent_period")
	return []kind{
		{"frequently", time.Duration(often) * time.Minute, func(g *replicate.Grid) *int { return &g.Last }},
		{"hourly", time.Hour, func(g *replicate.Grid) *int { return &g.Hourly }},
		{"daily", day, func(g *replicate.Grid) *int { return &g.Daily }},
		{"weekly", 7 * day, func(g *replicate.Grid) *int { return &g.Weekly }},
		{"monthly", 31 * day, func(g *replicate.Grid) *int { return &g.Monthly }},
		{"yearly", 365*day + day/4, func(g *replicate.Grid) *int { return &g.Yearly }},
	}, err
}

// reaching is how many periods of the calendar hold all that sanoid keeps n of.
// It removes one of a kind that is older than n periods of its own, where there
// are more than n; months have 31 days then. The newest of the last period
// counted is to be older than all that: two more periods have begun, or end,
// within that span, and of months there are more in as many of 31 days.
func (k kind) reaching(n int) int {
	switch k.name {
	case "frequently":
		return n + 1
	case "monthly":
		return (31*n+3)*12*100/36525 + 3
	case "yearly":
		return n + 3
	}
	return n + 2
}

// grid is the policy's retention, nil where it prunes nothing: what sanoid keeps
// of its own by its own rule, and a grid that reaches as far back at any date.
func (p *policy) grid() (*replicate.Grid, error) {
	if !p.on("autoprune") || p.deferred() {
		return nil, nil
	}
	kinds, err := p.kinds()
	if err != nil {
		return nil, err
	}
	g := &replicate.Grid{}
	for _, k := range kinds {
		n, err := p.number(k.name)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			continue
		}
		raise(k.count(g), k.reaching(n))
		also := replicate.Also{Names: []string{"autosnap_*_" + k.name}, Last: n}
		if k.period > 0 { // frequent_period may be 0
			also.Age = replicate.Duration(min(time.Duration(n), 100*365*day/k.period) * k.period)
		}
		g.Also = append(g.Also, also)
	}
	if g.Empty() {
		return nil, nil
	}
	return g, nil
}

// deferred tells that sanoid removes nothing while the pool is empty enough.
func (p *policy) deferred() bool {
	v, set := p.values["prune_defer"]
	return set && truth(v.value)
}
