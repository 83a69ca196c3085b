package retention

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// oracle implements the definition of a retention policy independently. It goes back hour by hour
// and keeps the newest snapshot of the period around each hour.
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

// randomPoints returns n random points in order, with gaps.
func randomPoints(r *rand.Rand, n int) []Point {
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
		points := randomPoints(r, 1+r.IntN(120))
		want := oracle(g, points)
		r.Shuffle(len(points), func(i, k int) { points[i], points[k] = points[k], points[i] })
		require.Equal(t, want, slices.Sorted(maps.Keys(g.Keep(points))), "%+v of %v", g, points)
	}
}

// TestKeepIsStable expects that pruning after each snapshot has the same result as pruning once.
func TestKeepIsStable(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(6, 2026))
	rounds := testenv.Rounds(15, 50, 200)
	for range rounds {
		g := &Grid{Last: r.IntN(4), Hourly: r.IntN(30), Daily: r.IntN(12), Weekly: r.IntN(6), Monthly: r.IntN(4)}
		all := randomPoints(r, 150)
		var have []Point
		for _, p := range all {
			have = append(have, p)
			kept := g.Keep(have)
			have = slices.DeleteFunc(have, func(p Point) bool { return kept[p.Name] == "" })
		}
		require.ElementsMatch(t, slices.Collect(maps.Keys(g.Keep(all))), slices.Collect(maps.Keys(g.Keep(have))))
	}
}

func TestKeepReasons(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	points := []Point{{Name: "old", Time: at.AddDate(0, 0, -3)}, {Name: "new", Time: at}}
	require.Equal(t, map[string]string{"new": "last, daily", "old": "daily"}, (&Grid{Last: 1, Daily: 2}).Keep(points))
}

// TestKeepWithWrongClock expects that if the clock was years ahead for a day, or was set back,
// later snapshots are still kept. Snapshots with wrong times age like all others.
func TestKeepWithWrongClock(t *testing.T) {
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
			p.Time = p.Time.Add(-3 * time.Hour) // by name, earlier than the previous one
		}
		have = append(have, p)
		kept := g.Keep(have)
		require.NotEmpty(t, kept[p.Name], "the newest, %s", p.Name)
		have = slices.DeleteFunc(have, func(p Point) bool { return kept[p.Name] == "" })
	}
	require.Len(t, have, 24)
	require.Equal(t, "s076", have[0].Name)
}

// TestKeepAlso expects that an also rule keeps the newest snapshots by name, those up to an age,
// and no snapshots after a time. The age counts from the newest snapshot of any name.
func TestKeepAlso(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	var points []Point // a0 at hour 0, b1 at hour 1, a2 at hour 2, …, b5 at hour 5
	for i := range 6 {
		points = append(points, Point{Name: fmt.Sprintf("%c%d", "ab"[i%2], i), Time: start.Add(time.Duration(i) * time.Hour), Order: uint64(i)})
	}
	a := []string{"a*"}
	for name, tt := range map[string]struct {
		also []Also
		want []string
	}{
		"names alone":              {[]Also{{Names: a}}, nil},
		"the newest":               {[]Also{{Names: a, Last: 2}}, []string{"a2", "a4"}},
		"more than exist":          {[]Also{{Names: a, Last: 9}}, []string{"a0", "a2", "a4"}},
		"an age that matches none": {[]Also{{Names: a, Age: calendar.Duration(time.Hour - 1)}}, nil},
		"an age that just reaches": {[]Also{{Names: a, Age: calendar.Duration(3 * time.Hour)}}, []string{"a2", "a4"}},
		"an age that just misses":  {[]Also{{Names: a, Age: calendar.Duration(3*time.Hour - 1)}}, []string{"a4"}},
		"age or number":            {[]Also{{Names: a, Last: 2, Age: calendar.Duration(time.Hour)}}, []string{"a2", "a4"}},
		"before a time":            {[]Also{{Names: a, Last: 1, Before: start.Add(4 * time.Hour)}}, []string{"a2"}},
		"a moment later":           {[]Also{{Names: a, Last: 1, Before: start.Add(4*time.Hour + 1)}}, []string{"a4"}},
		"two rules":                {[]Also{{Names: a, Last: 1}, {Names: []string{"b*"}, Last: 1}}, []string{"a4", "b5"}},
	} {
		kept := (&Grid{Also: tt.also}).Keep(points)
		require.Equal(t, tt.want, slices.Sorted(maps.Keys(kept)), name)
		for _, why := range kept {
			require.Equal(t, "also", why, name)
		}
	}
	require.Equal(t, "last, also", (&Grid{Last: 1, Also: []Also{{Names: []string{"b*"}, Last: 1}}}).Keep(points)["b5"])
	require.Empty(t, (&Grid{Last: 3, Also: []Also{{Names: a, Last: 1}}}).Keep(nil))
}

// TestKeepPeriods expects that every rule keeps the newest snapshot of a period, and that periods
// follow the calendar.
func TestKeepPeriods(t *testing.T) {
	t.Parallel()
	at := func(s string) time.Time {
		tm, err := time.Parse(time.DateTime, s)
		require.NoError(t, err)
		return tm
	}
	for name, tt := range map[string]struct {
		grid  Grid
		times []string // oldest first
		want  []string // indices of times
	}{
		"hours":                {Grid{Hourly: 2}, []string{"2026-11-01 07:59:59", "2026-11-01 08:00:00", "2026-11-01 08:59:59"}, []string{"0", "2"}},
		"days":                 {Grid{Daily: 2}, []string{"2026-11-01 23:59:59", "2026-11-02 00:00:00", "2026-11-02 23:59:59"}, []string{"0", "2"}},
		"days of two years":    {Grid{Daily: 2}, []string{"2025-11-02 12:00:00", "2026-11-02 12:00:00"}, []string{"0", "1"}},
		"weeks begin Monday":   {Grid{Weekly: 2}, []string{"2026-11-01 23:59:59", "2026-11-02 00:00:00", "2026-11-08 23:59:59"}, []string{"0", "2"}},
		"a week of two years":  {Grid{Weekly: 2}, []string{"2026-12-27 12:00:00", "2026-12-28 00:00:00", "2027-01-03 23:59:59"}, []string{"0", "2"}},
		"months":               {Grid{Monthly: 2}, []string{"2026-10-31 23:59:59", "2026-11-01 00:00:00", "2026-11-30 23:59:59"}, []string{"0", "2"}},
		"December and January": {Grid{Monthly: 2}, []string{"2025-12-31 12:00:00", "2026-01-01 12:00:00"}, []string{"0", "1"}},
		"years":                {Grid{Yearly: 2}, []string{"2025-12-31 23:59:59", "2026-01-01 00:00:00", "2026-12-31 23:59:59"}, []string{"0", "2"}},
	} {
		var points []Point
		for i, s := range tt.times {
			points = append(points, Point{Name: fmt.Sprint(i), Time: at(s), Order: uint64(i)})
		}
		require.Equal(t, tt.want, slices.Sorted(maps.Keys(tt.grid.Keep(points))), name)
	}
}

// TestPrunableOverRandomHistories expects that retention destroys exactly the job's snapshots that
// the oracle does not keep, except the newest one and the incremental sources of all targets.
// TestPeriodsOfManyYears expects that two times share a period only if a calendar says so.
func TestPeriodsOfManyYears(t *testing.T) {
	t.Parallel()
	calendar := map[string]func(time.Time) string{
		"hourly": func(at time.Time) string { return at.Format("2006-01-02 15") },
		"daily":  func(at time.Time) string { return at.Format("2006-01-02") },
		"weekly": func(at time.Time) string {
			year, week := at.ISOWeek()
			return fmt.Sprint(year, " ", week)
		},
		"monthly": func(at time.Time) string { return at.Format("2006-01") },
		"yearly":  func(at time.Time) string { return at.Format("2006") },
	}
	for _, r := range (&Grid{}).Rules() {
		want := calendar[r.Name]
		if r.period == nil {
			continue
		}
		names, periods := map[int64]string{}, map[string]int64{}
		for hour := time.Date(1999, 12, 28, 22, 0, 0, 0, time.UTC); hour.Year() < 2040; hour = hour.Add(7 * time.Hour) {
			for _, at := range []time.Time{hour, hour.Add(59 * time.Minute)} {
				name, period := want(at), r.period(at)
				if names[period] == "" {
					names[period] = name
				}
				if _, known := periods[name]; !known {
					periods[name] = period
				}
				require.Equal(t, name, names[period], "%s %s", r.Name, at)
				require.Equal(t, periods[name], period, "%s %s", r.Name, at)
			}
		}
	}
}

func TestPrunableOverRandomHistories(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(9, 2026))
	removed := 0
	for range 300 {
		g := &Grid{Last: r.IntN(4), Hourly: r.IntN(20), Daily: r.IntN(10), Weekly: r.IntN(4), Monthly: r.IntN(3)}
		source := &zfs.Dataset{Name: "tank/a"}
		created := map[string]time.Time{}
		var ours []Point
		seen := map[string]bool{}
		for i, p := range randomPoints(r, 80) {
			name := p.Time.Format("own-200601021504")
			if r.IntN(3) == 0 { // outside the scope, or of an unknown time
				name = fmt.Sprintf("manual-%d", i)
			} else if !seen[name] {
				created[name] = p.Time.Truncate(time.Minute)
			}
			if seen[name] {
				continue
			}
			seen[name] = true
			v := zfs.Version{Kind: zfs.Snapshot, Name: name, GUID: uint64(1000 + i), CreateTXG: uint64(10 + i)}
			source.Versions = append(source.Versions, v)
			if at, known := created[name]; known {
				ours = append(ours, Point{Name: name, Time: at, Order: v.CreateTXG})
			}
		}
		protected := map[uint64]Reason{}
		for range r.IntN(4) {
			protected[source.Versions[r.IntN(len(source.Versions))].GUID] = Reason{Kind: IncrementalSource, Of: "near"}
		}
		kept := map[string]bool{}
		for _, name := range oracle(g, ours) {
			kept[name] = true
		}
		var want []string
		newest := source.Versions[len(source.Versions)-1]
		for _, v := range source.Versions {
			if _, known := created[v.Name]; known && !kept[v.Name] && protected[v.GUID].Kind == NoReason && v.GUID != newest.GUID {
				want = append(want, v.Name)
			}
		}
		var got []string
		for _, v := range g.Prunable(source, dates(created), protected, &History{}, time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)).Remove {
			got = append(got, v.Name)
		}
		require.ElementsMatch(t, want, got)
		removed += len(got)
	}
	require.Greater(t, removed, 1000, "the histories are long enough")
}

func TestPrunableWithoutGrid(t *testing.T) {
	t.Parallel()
	d := &zfs.Dataset{Name: "a", Versions: []zfs.Version{{Kind: zfs.Snapshot, Name: "x", GUID: 1}}}
	var none *Grid
	require.Empty(t, none.Prunable(d, dates(map[string]time.Time{"x": time.Unix(0, 0)}), nil, &History{}, time.Unix(1, 0)).Remove)
}

// TestHeldSnapshotsDoNotCountTowardsLimit expects that snapshots that are kept because of holds do
// not count towards the limit of later runs.
func TestHeldSnapshotsDoNotCountTowardsLimit(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	g, h := &Grid{Hourly: 24}, &History{}
	d, created := &zfs.Dataset{Name: "vault/a"}, map[string]time.Time{}
	take := func(i int) {
		name := fmt.Sprint("s", i)
		d.Versions = append(d.Versions, zfs.Version{Kind: zfs.Snapshot, Name: name, GUID: uint64(i + 1), CreateTXG: uint64(i + 1)})
		created[name] = begin.Add(time.Duration(i) * time.Hour)
	}
	for i := range 200 {
		take(i)
	}
	for run := range 3 {
		r := g.Prunable(d, dates(created), nil, h, begin.Add(time.Duration(199+run)*time.Hour))
		require.Len(t, r.Remove, 176+run, "nothing can be destroyed, because all are held")
		require.Zero(t, r.OverLimit, "run %d", run)
		h.Complete()
		take(200 + run)
	}
}

// TestOverLimit changes the policy, and expects that the snapshots beyond it count as over the limit.
func TestOverLimit(t *testing.T) {
	t.Parallel()
	v := newVault(t, &Grid{Hourly: 200})
	begin := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	now := v.receiveHonest(rand.New(rand.NewPCG(1, 15)), begin, begin.Add(20*day), time.Hour, time.Hour)
	require.Zero(t, v.limit)
	v.grid = &Grid{Hourly: 20}
	require.Equal(t, 180, v.grid.Prunable(v.d, dates(v.created), nil, v.history, now).OverLimit)
}
