package replicate

import (
	"fmt"
	"time"

	"github.com/dustin/go-humanize/english"
)

// defaultPruneLimit is higher than normal runs need. A run exceeds it only if the job file changed
// or something is wrong.
const defaultPruneLimit = 100

// PruneAtMost returns PruneLimit or its default.
func (j *Job) PruneAtMost() int {
	if j.PruneLimit == nil {
		return defaultPruneLimit
	}
	return *j.PruneLimit
}

// refuse sets the error of p, which then destroys nothing. The limit is exceeded by snapshots that
// neither time nor newer ones supersede.
func (p *Pruning) refuse(j *Job, dataset string, beyond int) {
	p.Refused = true
	p.Error = fmt.Sprintf("nothing was removed: %s of %s would go, although neither time nor newer ones explain it, and prune_limit allows one run %d",
		english.Plural(beyond, "snapshot", ""), dataset, j.PruneAtMost())
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

// filled returns points such that every rule has one in each of its periods from one time to
// another.
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
