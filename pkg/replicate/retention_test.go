package replicate

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// oracle keeps by the definition, period by period, from the calendar's side:
// it walks back in time an hour after the other and asks which snapshot is
// the newest of the period around it.
func oracle(g *Grid, points []Point) []string {
	kept := map[string]bool{}
	newest := func(from, to time.Time) (best *Point) {
		for i := range points {
			p := &points[i]
			if !p.Time.Before(from) && p.Time.Before(to) &&
				(best == nil || p.Time.After(best.Time) || p.Time.Equal(best.Time) && p.Order > best.Order) {
				best = p
			}
		}
		return best
	}
	var first, last time.Time
	for i, p := range points {
		if i == 0 || p.Time.Before(first) {
			first = p.Time
		}
		if p.Time.After(last) {
			last = p.Time
		}
	}
	back := func(n int, start func(time.Time) time.Time, next func(time.Time) time.Time) {
		for at := start(last); n > 0 && !next(at).Before(first) && len(points) > 0; at = start(at.Add(-time.Second)) {
			if p := newest(at, next(at)); p != nil {
				kept[p.Name] = true
				n--
			}
			if at.Before(first) {
				break
			}
		}
	}
	days := func(n int) func(time.Time) time.Time {
		return func(t time.Time) time.Time { return t.AddDate(0, 0, n) }
	}
	midnight := func(t time.Time) time.Time { return t.Truncate(24 * time.Hour) }
	back(g.Hourly, func(t time.Time) time.Time { return t.Truncate(time.Hour) }, func(t time.Time) time.Time { return t.Add(time.Hour) })
	back(g.Daily, midnight, days(1))
	back(g.Weekly, func(t time.Time) time.Time { return midnight(t).AddDate(0, 0, -(int(t.Weekday())+6)%7) }, days(7))
	back(g.Monthly, func(t time.Time) time.Time { return time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC) },
		func(t time.Time) time.Time { return t.AddDate(0, 1, 0) })
	back(g.Yearly, func(t time.Time) time.Time { return time.Date(t.Year(), 1, 1, 0, 0, 0, 0, time.UTC) },
		func(t time.Time) time.Time { return t.AddDate(1, 0, 0) })
	sorted := slices.Clone(points)
	slices.SortFunc(sorted, func(a, b Point) int {
		if c := b.Time.Compare(a.Time); c != 0 {
			return c
		}
		return int(b.Order) - int(a.Order)
	})
	for _, p := range sorted[:min(g.Last, len(sorted))] {
		kept[p.Name] = true
	}
	return slices.Sorted(maps.Keys(kept))
}

// history is a random series of snapshots in order, with gaps.
func history(r *rand.Rand, n int) []Point {
	at := time.Date(2024, 12, 20, r.IntN(24), r.IntN(60), 0, 0, time.UTC)
	var out []Point
	for i := range n {
		switch r.IntN(12) {
		case 0:
			at = at.Add(time.Duration(r.IntN(9*24)) * time.Hour)
		case 1: // a second snapshot at the same time
		default:
			at = at.Add(time.Duration(r.IntN(150)) * time.Minute)
		}
		out = append(out, Point{Name: fmt.Sprintf("s%03d", i), Time: at, Order: uint64(i)})
	}
	return out
}

func TestKeepAgainstOracle(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 2026))
	for range 300 {
		g := &Grid{Last: r.IntN(4), Hourly: r.IntN(30), Daily: r.IntN(12), Weekly: r.IntN(6), Monthly: r.IntN(4), Yearly: r.IntN(3)}
		points := history(r, 1+r.IntN(120))
		want := oracle(g, points)
		r.Shuffle(len(points), func(i, k int) { points[i], points[k] = points[k], points[i] })
		require.Equal(t, want, slices.Sorted(maps.Keys(g.Keep(points))), "%+v of %v", g, points)
	}
}

// Pruning at every run leaves what pruning once at the end would.
func TestKeepIsStable(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(6, 2026))
	rounds := 200
	if testing.Short() {
		rounds = 50
	}
	for range rounds {
		g := &Grid{Last: r.IntN(4), Hourly: r.IntN(30), Daily: r.IntN(12), Weekly: r.IntN(6), Monthly: r.IntN(4)}
		all := history(r, 150)
		var have []Point
		for _, p := range all {
			have = append(have, p)
			kept := g.Keep(have)
			have = slices.DeleteFunc(have, func(p Point) bool { return kept[p.Name] == "" })
		}
		require.ElementsMatch(t, slices.Collect(maps.Keys(g.Keep(all))), slices.Collect(maps.Keys(g.Keep(have))))
	}
}

func TestKeepSaysWhy(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	points := []Point{{Name: "old", Time: at.AddDate(0, 0, -3)}, {Name: "new", Time: at}}
	require.Equal(t, map[string]string{"new": "last, daily", "old": "daily"}, (&Grid{Last: 1, Daily: 2}).Keep(points))
	var none *Grid
	require.Len(t, none.Keep(points), 2)
}

// A clock that was years ahead for a day, or went back, costs no later snapshot
// its place: what was taken then ages like all others.
func TestKeepWithAWrongClock(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	g := &Grid{Hourly: 24}
	var have []Point
	for i := range 100 {
		p := Point{Name: fmt.Sprintf("s%03d", i), Time: at.Add(time.Duration(i) * time.Hour), Order: uint64(i)}
		switch {
		case i >= 20 && i < 44:
			p.Time = p.Time.AddDate(4, 0, 0)
		case i >= 60 && i < 63:
			p.Time = p.Time.Add(-3 * time.Hour) // what they say was before
		}
		have = append(have, p)
		kept := g.Keep(have)
		require.NotEmpty(t, kept[p.Name], "the newest, %s", p.Name)
		have = slices.DeleteFunc(have, func(p Point) bool { return kept[p.Name] == "" })
	}
	require.Len(t, have, 24)
	require.Equal(t, "s076", have[0].Name)
}
