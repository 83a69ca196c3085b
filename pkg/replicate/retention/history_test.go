package retention

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// vault is a dataset that other hosts send to, with this host's retention.
type vault struct {
	t       *testing.T
	grid    *Grid
	d       *zfs.Dataset
	created map[string]time.Time
	good    map[string]bool
	held    map[string]bool
	history *History
	limit   int // highest OverLimit of a run
}

func newVault(t *testing.T, g *Grid) *vault {
	return &vault{t: t, grid: g, d: &zfs.Dataset{Name: "vault/web1", GUID: 1}, created: map[string]time.Time{},
		good: map[string]bool{}, held: map[string]bool{}, history: &History{Dataset: 1}}
}

// dates returns the argument date of Prunable for snapshots with these times.
func dates(created map[string]time.Time) func(string) (time.Time, bool) {
	return func(name string) (time.Time, bool) {
		at, known := created[name]
		return at, known
	}
}

func (v *vault) receive(at time.Time, good bool) string {
	n := uint64(len(v.created) + 1)
	name := fmt.Sprintf("s%05d", n)
	v.created[name], v.good[name] = at.Truncate(time.Second), good
	v.d.Versions = append(v.d.Versions, zfs.Version{Kind: zfs.Snapshot, Name: name, GUID: n, CreateTXG: 100 + 2*n})
	return name
}

func (v *vault) prune(now time.Time) {
	r := v.grid.Prunable(v.d, dates(v.created), nil, v.history, now)
	v.limit = max(v.limit, r.OverLimit)
	destroyed := map[string]bool{}
	for _, s := range r.Remove {
		destroyed[s.Name] = !v.held[s.Name]
	}
	v.d.Versions = slices.DeleteFunc(v.d.Versions, func(s zfs.Version) bool { return destroyed[s.Name] })
	if !r.Waiting {
		v.history.Kept = v.history.Seen
	}
	require.LessOrEqual(v.t, len(v.history.Dates), len(v.d.Versions)+len(destroyed), "the record is bounded")
}

func (v *vault) names(of func(string) bool) []string {
	var out []string
	for _, s := range v.d.Versions {
		if of(s.Name) {
			out = append(out, s.Name)
		}
	}
	return out
}

func randomGrid(r *rand.Rand) *Grid {
	g := &Grid{Hourly: r.IntN(30), Daily: r.IntN(12), Weekly: r.IntN(6), Monthly: r.IntN(4), Yearly: r.IntN(3)}
	if r.IntN(2) == 0 {
		g.Last = 5 + r.IntN(40)
	}
	if g.Empty() {
		g.Daily = 7
	}
	_ = g.Timezone.UnmarshalText([]byte(pick(r, zones...)))
	return g
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// receiveHonest receives legitimate snapshots at the given pace and prunes occasionally. It returns
// to.
func (v *vault) receiveHonest(r *rand.Rand, from, to time.Time, pace, every time.Duration) (at time.Time) {
	run := from.Add(every)
	for at = from; at.Before(to); at = at.Add(pace - pace/20 + time.Duration(r.Int64N(int64(pace/10)))) {
		for ; run.Before(at); run = run.Add(every) {
			v.prune(run)
		}
		v.receive(at, true)
	}
	v.prune(to)
	return to
}

// forgedDate returns a date that an attacker could choose at the time now.
func forgedDate(r *rand.Rand, now, newest time.Time) time.Time {
	span := func(max time.Duration) time.Duration { return time.Duration(r.Int64N(int64(max))) }
	switch r.IntN(7) {
	case 0:
		return now.AddDate(r.IntN(60), r.IntN(12), r.IntN(31))
	case 1:
		return now.Add(span(3 * time.Hour))
	case 2:
		return now.AddDate(-r.IntN(50), 0, -r.IntN(300))
	case 3:
		return now.Add(-span(60 * day))
	case 4:
		return newest.Add(span(max(now.Sub(newest), time.Second)))
	case 5:
		return newest.Truncate(day).Add(day - time.Second)
	}
	return now
}

// TestForgedSnapshotsDoNotSpeedUpPruning expects that forged snapshots displace legitimate ones no faster
// than a sender that takes a snapshot in every period. For last, the limit is twice the pace at
// which they arrived.
func TestForgedSnapshotsDoNotSpeedUpPruning(t *testing.T) {
	t.Parallel()
	rounds := testenv.Rounds(6, 30, 120)
	kept, fakes := 0, 0
	for i := range rounds {
		r := rand.New(rand.NewPCG(uint64(i), 10))
		g := randomGrid(r)
		v := newVault(t, g)
		pace, every := pick(r, 15*time.Minute, time.Hour, 6*time.Hour, day), pick(r, time.Hour, 6*time.Hour, day)
		if pace < time.Hour {
			every = time.Hour
		}
		begin := time.Date(2025, time.Month(1+r.IntN(12)), 1+r.IntN(28), r.IntN(24), r.IntN(60), 0, 0, time.UTC)
		now := v.receiveHonest(r, begin, begin.Add(20*pace+time.Duration(r.Int64N(int64(40*day)))), pace, every)
		if r.IntN(4) == 0 { // a pause
			now = now.Add(time.Duration(r.Int64N(int64(14 * day))))
		}
		var good []Point
		for _, s := range v.d.Versions {
			good = append(good, Point{Name: s.Name, Time: v.created[s.Name], Order: s.CreateTXG})
		}
		newest := good[len(good)-1].Time
		for end := now.Add(time.Duration(r.Int64N(int64(9 * day)))); now.Before(end); {
			for range r.IntN(50) * r.IntN(2) {
				name := v.receive(forgedDate(r, now, newest), false)
				v.held[name] = r.IntN(20) == 0
				fakes++
			}
			now = now.Add(time.Duration(1 + r.Int64N(int64(min(12*every, 2*day)))))
			v.prune(now)
			if r.IntN(10) == 0 { // also check in between
				kept += v.requireGood(good, newest, now, pace)
			}
		}
		kept += v.requireGood(good, newest, now, pace)
	}
	require.Greater(t, fakes, 10*rounds)
	require.Greater(t, kept, 4*rounds, "the flood is large enough")
}

// requireGood checks that the vault has all honest snapshots that it would have with a new one
// every pace.
func (v *vault) requireGood(good []Point, since, now time.Time, pace time.Duration) int {
	v.t.Helper()
	points := slices.Clone(good)
	for at := since; !at.After(now); at = at.Add(20 * time.Minute) {
		points = append(points, Point{Name: "later", Time: at, Order: 1<<40 + uint64(at.Unix())})
	}
	points = append(points, Point{Name: "later", Time: now, Order: 1 << 60})
	timely := *v.grid
	timely.Last = 0
	want := timely.Keep(points)
	have := v.names(func(n string) bool { return v.good[n] })
	n := 0
	for i, p := range good {
		last := len(good)-i <= v.grid.Last && float64(now.Sub(p.Time)) < 0.45*float64(v.grid.Last)*float64(pace)
		if want[p.Name] != "" || last {
			require.Contains(v.t, have, p.Name, "%s of %s is %q, last: %v\n%+v", p.Name, p.Time, want[p.Name], last, *v.grid)
			n++
		}
	}
	return n
}

// TestImpossibleDatesAreIgnored expects that snapshots with impossible dates do not change
// which other snapshots are pruned.
func TestImpossibleDatesAreIgnored(t *testing.T) {
	t.Parallel()
	rounds := testenv.Rounds(3, 12, 40)
	doubts, removed := 0, 0
	for i := range rounds {
		r := rand.New(rand.NewPCG(uint64(i), 11))
		g := randomGrid(r)
		alone, among := newVault(t, g), newVault(t, g)
		now := time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
		var newest time.Time
		honest := map[string]string{}
		for range 24 * (10 + r.IntN(20)) {
			for range r.IntN(4) {
				if newest.IsZero() {
					break
				}
				at := newest.Add(-time.Second - time.Duration(r.Int64N(int64(400*day))))
				if r.IntN(2) == 0 {
					at = now.Add(3*time.Hour + time.Duration(r.Int64N(int64(400*day))))
				}
				among.held[among.receive(at, false)] = r.IntN(4) == 0
				doubts++
			}
			newest = now
			honest[alone.receive(now, true)] = among.receive(now, true)
			now = now.Add(time.Hour)
			if r.IntN(3) > 0 {
				alone.prune(now)
				among.prune(now)
			}
		}
		removed += len(alone.created) - len(alone.d.Versions)
		have := among.names(func(n string) bool { return among.good[n] })
		for _, n := range alone.names(func(string) bool { return true }) {
			require.Contains(t, have, honest[n], "%+v", *g)
		}
	}
	require.Greater(t, doubts, 80*rounds)
	require.Greater(t, removed, 80*rounds)
}

// TestLegitimateHistoriesFollowPolicy expects that with legitimate senders, each run prunes
// exactly as the policy requires. Cases are a first run with years of snapshots, a week of catching
// up, and a sender whose clock is slightly ahead.
func TestLegitimateHistoriesFollowPolicy(t *testing.T) {
	t.Parallel()
	rounds := testenv.Rounds(6, 25, 80)
	for i := range rounds {
		r := rand.New(rand.NewPCG(uint64(i), 12))
		g := randomGrid(r)
		v := newVault(t, g)
		now := time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
		pace := pick(r, time.Hour, 3*time.Hour, day)
		skew := time.Duration(r.IntN(3)) * 20 * time.Second
		var have []Point
		send := func(from time.Time) {
			for at := from; !at.After(now); at = at.Add(pace) {
				name := v.receive(at.Add(skew), true)
				have = append(have, Point{Name: name, Time: v.created[name], Order: v.d.Versions[len(v.d.Versions)-1].CreateTXG})
			}
		}
		prune := func() {
			v.prune(now)
			kept := g.Keep(have)
			have = slices.DeleteFunc(have, func(p Point) bool { return kept[p.Name] == "" && p.Order != have[len(have)-1].Order })
			want := map[string]bool{}
			for _, p := range have {
				want[p.Name] = true
			}
			require.ElementsMatch(t, slices.Collect(maps.Keys(want)), v.names(func(string) bool { return true }), "%s, every %s\n%+v", now, pace, *g)
		}
		send(now.AddDate(-r.IntN(2), -r.IntN(4), 0)) // first sync
		prune()
		for range 40 {
			away := now
			if now = now.Add(pace); r.IntN(10) == 0 {
				now = now.Add(time.Duration(7*day/pace) * pace)
			}
			send(away.Add(pace))
			if r.IntN(4) > 0 {
				prune()
			}
		}
		require.Zero(t, v.limit, "nothing is beyond the limit")
	}
}

// TestLostHistory expects that without the history, only snapshots that represent the periods
// around a date are lost.
func TestLostHistory(t *testing.T) {
	t.Parallel()
	for i := range 40 {
		r := rand.New(rand.NewPCG(uint64(i), 13))
		v := newVault(t, &Grid{Daily: 30})
		begin := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		now := v.receiveHonest(r, begin, begin.Add(30*day), day, day)
		v.receive(now, true)
		v.prune(now)
		before := len(v.names(func(n string) bool { return v.good[n] }))
		for range 40 {
			v.held[v.receive(now.Add(-time.Duration(r.Int64N(int64(30*day)))), false)] = r.IntN(2) == 0
		}
		for range 10 {
			v.history = &History{Dataset: 1}
			now = now.Add(time.Minute)
			v.prune(now)
		}
		require.GreaterOrEqual(t, len(v.names(func(n string) bool { return v.good[n] })), before-1)
	}
}

// TestTemporaryClockError expects that a temporary error of this host's clock does not change
// which older dates are trusted.
func TestTemporaryClockError(t *testing.T) {
	t.Parallel()
	g := &Grid{Hourly: 24, Daily: 7}
	v := newVault(t, g)
	r := rand.New(rand.NewPCG(1, 14))
	begin := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	now := v.receiveHonest(r, begin, begin.Add(20*day), time.Hour, time.Hour)
	before := v.names(func(string) bool { return true })
	for _, wrong := range []time.Time{time.Unix(0, 0), now.AddDate(20, 0, 0)} {
		v.prune(wrong)
		require.Equal(t, before, v.names(func(string) bool { return true }))
	}
	v.receive(now.AddDate(4, 0, 0), true) // taken by the job with a wrong clock
	v.prune(now.AddDate(4, 0, 1))
	v.receiveHonest(r, now.Add(time.Hour), now.Add(12*day), time.Hour, time.Hour)
	require.Zero(t, v.history.CountUntrusted(), "the correct dates after it are trusted")
	require.LessOrEqual(t, len(v.d.Versions), 24+7+1)
}

// TestFloodDoesNotExhaustLast expects that a sender that sends faster displaces snapshots kept by
// last no sooner than after half of their time. Then its new pace applies.
func TestFloodDoesNotExhaustLast(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 16))
	v := newVault(t, &Grid{Last: 30})
	begin := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	now := v.receiveHonest(r, begin, begin.Add(60*day), day, day)
	before := v.names(func(string) bool { return true })
	require.Len(t, before, 30)
	for end := now.Add(30 * day); now.Before(end); {
		for range 4 {
			now = now.Add(15 * time.Minute)
			v.receive(now, false)
		}
		v.prune(now)
		have := v.names(func(n string) bool { return v.good[n] })
		for _, n := range before {
			if now.Sub(v.created[n]) < 14*day {
				require.Contains(t, have, n)
			}
		}
	}
	require.Empty(t, v.names(func(n string) bool { return v.good[n] }))
	require.Len(t, v.d.Versions, 30, "the pace has changed")
}

// TestConcurrentSnapshotsOfTwoTools expects that both dates are trusted if another tool takes a
// snapshot between the start of a run and the job's snapshot. The job's snapshot has the date of
// the start.
func TestConcurrentSnapshotsOfTwoTools(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	h := &History{}
	var points []Point
	for i := range 50 {
		at := begin.Add(time.Duration(i) * time.Hour)
		points = append(points, Point{Name: fmt.Sprint("other", i), Time: at.Add(40 * time.Second), Order: uint64(2*i + 1)},
			Point{Name: fmt.Sprint("own", i), Time: at, Order: uint64(2*i + 2)})
		h.trustedPoints(points, at.Add(time.Minute))
	}
	require.Zero(t, h.CountUntrusted())
}
