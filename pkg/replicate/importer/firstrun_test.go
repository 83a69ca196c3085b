package importer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// toolSnapshot is a snapshot of another tool.
type toolSnapshot struct {
	name string
	at   time.Time
}

// sanoidModel simulates sanoid 2.1, rewritten from its take_snapshots and prune_snapshots.
type sanoidModel struct {
	keep  map[string]int
	zone  *time.Location
	hour  int // of the daily, weekly, monthly and yearly ones
	mday  int
	yearM time.Month
}

func (m *sanoidModel) text() string {
	out := "[tank/a]\n"
	for _, kind := range kinds() {
		out += fmt.Sprintf("%s = %d\n", kind, m.keep[kind])
	}
	return out + fmt.Sprintf("daily_hour = %d\nweekly_hour = %d\nmonthly_hour = %d\nyearly_hour = %d\nmonthly_mday = %d\nyearly_mon = %d\n", m.hour, m.hour, m.hour, m.hour, m.mday, m.yearM)
}

// all returns the snapshots of a kind in the years before a time, oldest first.
func (m *sanoidModel) all(kind string, before time.Time) []toolSnapshot {
	var out []toolSnapshot
	at := before.In(m.zone).AddDate(-5, 0, 0)
	days := func(n int) func(time.Time) time.Time {
		return func(t time.Time) time.Time { return t.AddDate(0, 0, n) }
	}
	next := days(1)
	switch kind {
	case "hourly":
		at = before.In(m.zone).AddDate(0, 0, -40).Truncate(time.Hour)
		next = func(t time.Time) time.Time { return t.Add(time.Hour) }
	case "daily":
		at = time.Date(at.Year(), at.Month(), at.Day(), m.hour, 59, 0, 0, m.zone)
	case "weekly":
		at = time.Date(at.Year(), at.Month(), at.Day(), m.hour, 30, 0, 0, m.zone)
		for at.Weekday() != time.Monday {
			at = at.AddDate(0, 0, 1)
		}
		next = days(7)
	case "monthly":
		at = time.Date(at.Year(), at.Month(), m.mday, m.hour, 0, 0, 0, m.zone)
		next = func(t time.Time) time.Time { return t.AddDate(0, 1, 0) }
	case "yearly":
		at = time.Date(at.Year()-5, m.yearM, 1, m.hour, 0, 0, 0, m.zone)
		next = func(t time.Time) time.Time { return t.AddDate(1, 0, 0) }
	}
	for ; !at.After(before); at = next(at) {
		out = append(out, toolSnapshot{at.Format("autosnap_2006-01-02_15:04:05_") + kind, at})
	}
	return out
}

func kinds() []string { return []string{"hourly", "daily", "weekly", "monthly", "yearly"} }

// remaining returns the snapshots that sanoid still has at a time.
func (m *sanoidModel) remaining(all map[string][]toolSnapshot, now time.Time) []toolSnapshot {
	seconds := map[string]float64{"hourly": 3600, "daily": 86400, "weekly": 7 * 86400, "monthly": 31 * 86400, "yearly": 365.25 * 86400}
	var out []toolSnapshot
	for _, kind := range kinds() {
		of, n := all[kind], m.keep[kind]
		count := len(of)
		for _, s := range of { // oldest first
			if now.Sub(s.at).Seconds() > float64(n)*seconds[kind] && count > n {
				count--
				continue
			}
			out = append(out, s)
		}
	}
	return out
}

// firstRun returns the snapshots that the first run of an imported job destroys.
func firstRun(t *testing.T, j *replicate.Job, have []toolSnapshot, now time.Time) map[string]bool {
	t.Helper()
	scope, err := j.Scope()
	require.NoError(t, err)
	slices.SortStableFunc(have, func(a, b toolSnapshot) int { return a.at.Compare(b.at) })
	if scope.Naming() != nil {
		have = append(have, toolSnapshot{scope.Naming().At(now), now})
	}
	d := &zfs.Dataset{Name: "tank/a", GUID: 1}
	created := map[string]time.Time{}
	for i, s := range have {
		d.Versions = append(d.Versions, zfs.Version{Kind: zfs.Snapshot, Name: s.name, GUID: uint64(i + 1), CreateTXG: uint64(10 * (i + 1))})
		created[s.name] = s.at
	}
	out := map[string]bool{}
	for _, v := range j.Retention.Prunable(d, scope.Dates(created), nil, &retention.History{}, now).Remove {
		out[v.Name] = true
	}
	return out
}

// date returns a random time, often a boundary of a period.
func date(r *rand.Rand) time.Time {
	at := time.Date(2024+r.IntN(4), 1, 1, 0, 0, 0, 0, time.UTC)
	switch r.IntN(4) {
	case 0:
	case 1:
		at = at.AddDate(0, r.IntN(12), 0)
	default:
		return at.Add(time.Duration(r.Int64N(int64(365 * day))))
	}
	return at.Add(time.Duration(r.IntN(50)-25) * time.Hour).Add(time.Duration(r.IntN(3600)) * time.Second)
}

func randomSanoid(r *rand.Rand) *sanoidModel {
	m := &sanoidModel{keep: map[string]int{"hourly": r.IntN(50), "daily": r.IntN(100), "weekly": r.IntN(6), "monthly": r.IntN(14), "yearly": r.IntN(4)},
		zone: []*time.Location{time.UTC, time.FixedZone("east", 13*3600), time.FixedZone("west", -10*3600)}[r.IntN(3)],
		hour: r.IntN(24), mday: 1, yearM: 1}
	if r.IntN(3) == 0 {
		m.mday, m.yearM = 1+r.IntN(28), time.Month(1+r.IntN(12))
	}
	switch r.IntN(6) {
	case 0:
		m.keep = map[string]int{"hourly": 48, "daily": 90, "weekly": 0, "monthly": 6, "yearly": 0} // sanoid's defaults
	case 1:
		m.keep = map[string]int{"hourly": 0, "daily": 7, "weekly": 0, "monthly": 3, "yearly": 2}
	}
	return m
}

// TestFirstRunKeepsSanoidSnapshots expects that the first run of an imported job
// destroys nothing that sanoid would keep, at any date. Later, the job's own snapshots cover as
// much time as sanoid's would.
func TestFirstRunKeepsSanoidSnapshots(t *testing.T) {
	t.Parallel()
	rounds := testenv.Rounds(20, 120, 400)
	removed, checked := 0, 0
	for i := range rounds {
		r := rand.New(rand.NewPCG(uint64(i), 12))
		m := randomSanoid(r)
		f, _ := jobsOf(t, Sanoid, m.text())
		if len(f.Jobs) == 0 {
			continue // it keeps nothing
		}
		j, now := &f.Jobs[0], date(r)
		all := map[string][]toolSnapshot{}
		gaps := r.IntN(3) == 0
		for _, kind := range kinds() {
			if m.keep[kind] > 0 {
				all[kind] = m.all(kind, now.Add(-time.Minute))
			}
			if gaps { // it did not run for a while
				off := now.AddDate(0, 0, -r.IntN(120))
				all[kind] = slices.DeleteFunc(all[kind], func(s toolSnapshot) bool { return s.at.After(off) && s.at.Before(off.AddDate(0, 0, 20)) })
			}
		}
		have := append(m.remaining(all, now.AddDate(0, 0, -r.IntN(3))), toolSnapshot{"autosnap_mine", now.AddDate(-9, 0, 0)})
		gone := firstRun(t, j, have, now)
		require.False(t, gone["autosnap_mine"], "sanoid ignores it")
		oldest := now
		for _, s := range m.remaining(all, now) {
			require.False(t, gone[s.name], "%s on %s\n%s%+v", s.name, now, m.text(), j.Retention)
			checked++
			if s.at.Before(oldest) {
				oldest = s.at
			}
		}
		removed += len(gone)

		grid := *j.Retention
		grid.Also = nil
		var own []retention.Point
		for _, kind := range kinds() {
			if m.keep[kind] > 0 { // the most frequent kind gives the schedule
				for _, s := range m.all(kind, now) {
					own = append(own, retention.Point{Name: s.name, Time: s.at, Order: uint64(s.at.Unix())})
				}
				break
			}
		}
		if m.keep["hourly"] > 0 { // by the hour is more than needed
			for _, s := range m.all("daily", now.AddDate(0, 0, -40)) {
				own = append(own, retention.Point{Name: s.name, Time: s.at, Order: uint64(s.at.Unix())})
			}
		}
		kept, reach := grid.Keep(own), now
		for _, p := range own {
			if kept[p.Name] != "" && p.Time.Before(reach) {
				reach = p.Time
			}
		}
		if !gaps {
			require.False(t, reach.After(oldest), "own ones on %s reach back to %s, sanoid's to %s\n%s%+v", now, reach, oldest, m.text(), grid)
		}
	}
	require.Greater(t, checked, 10*rounds)
	require.Greater(t, removed, 2*rounds, "snapshots that sanoid would destroy are destroyed")
}

// zreplKeeps returns the snapshots that a grid of zrepl keeps, rewritten from its retentiongrid:
// the oldest of every interval, counted back from the newest.
func zreplKeeps(buckets []bucket, last int, all []toolSnapshot) map[string]bool {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b toolSnapshot) int { return b.at.Compare(a.at) })
	out := map[string]bool{}
	for _, s := range all[:min(last, len(all))] {
		out[s.name] = true
	}
	edge := all[0].at
	for _, b := range buckets {
		for range b.repeat {
			from := edge.Add(-b.span)
			var in []toolSnapshot
			for _, s := range all {
				if !s.at.After(edge) && s.at.After(from) {
					in = append(in, s)
				}
			}
			if b.keep > 0 && len(in) > b.keep {
				in = in[len(in)-b.keep:]
			}
			for _, s := range in {
				out[s.name] = true
			}
			edge = from
		}
	}
	return out
}

func TestFirstRunKeepsZreplSnapshots(t *testing.T) {
	t.Parallel()
	removed := 0
	for i := range testenv.Rounds(15, 90, 90) {
		r := rand.New(rand.NewPCG(uint64(i), 13))
		text := []string{"1x1h(keep=all) | 24x1h | 14x1d", "24x1h | 4x1w | 3x30d", "12x2h", "3x1d(keep=2)", "1x36h | 10x1d"}[r.IntN(5)]
		last, form := 1+r.IntN(10), r.IntN(3)
		buckets, err := (&zrepl{}).grid(1, text)
		require.NoError(t, err)
		now := date(r).Truncate(time.Second)
		res, err := Import([]Input{{Name: "x.yml", Text: fmt.Appendf(nil, `
jobs:
- name: s
  type: %s
  connect: {type: local, listener_name: l, client_identity: c}
  filesystems: {"tank/a": true}
  snapshotting: {type: %s, prefix: zrepl_, interval: 30m, timestamp_format: %s}
  pruning:
    keep: &rules
    - {type: grid, grid: "%s", regex: "^zrepl_.*"}
    - {type: last_n, count: %d, regex: "^zrepl_.*"}
    - {type: regex, negate: true, regex: "^zrepl_.*"}
    keep_sender: *rules
- {name: t, type: sink, root_fs: b, serve: {type: local, listener_name: l}}
`, []string{"snap", "snap", "push"}[form], []string{"periodic", "periodic", "manual"}[form], []string{"dense", "iso-8601", "dense"}[form], text, last)}}, Options{Now: now})
		require.NoError(t, err)
		f, err := jobfile.Parse("x", []byte(res.Text))
		require.NoError(t, err, res.Text)
		j := &f.Jobs[0]
		require.NotNil(t, j.Retention, res.Text)
		format := []string{"zrepl_20060102_150405_000", "zrepl_2006-01-02T15:04:05.000Z", "zrepl_20060102_150405_000"}[form]
		have := []toolSnapshot{{"manual", now.AddDate(-9, 0, 0)}}
		step := 6 * time.Hour
		prune := func() {
			kept := zreplKeeps(buckets, last, have)
			have = slices.DeleteFunc(have, func(s toolSnapshot) bool { return !kept[s.name] && s.name != "manual" })
		}
		for at := now.AddDate(0, -5, 0); at.Before(now); at = at.Add(step - time.Duration(r.IntN(9))*time.Second) {
			have = append(have, toolSnapshot{at.Format(format), at})
			if now.Sub(at) < 4*day {
				step = 30 * time.Minute
			}
			if len(have)%8 == 0 {
				prune()
			}
		}
		prune()
		first := now.Add(time.Duration(r.IntN(2000)) * time.Hour)
		gone := firstRun(t, j, slices.Clone(have), first)
		require.False(t, gone["manual"], "no rule of zrepl removes it")
		all := have[1:]
		if form < 2 { // with zrepl, the run's snapshot would have been one of its own
			all = append(slices.Clone(all), toolSnapshot{"new", first})
		}
		kept := zreplKeeps(buckets, last, all)
		for _, s := range all {
			require.False(t, gone[s.name] && kept[s.name], "%s on %s: %s", s.name, first, text)
		}
		removed += len(gone)
	}
	require.Positive(t, removed, "snapshots that zrepl would destroy are destroyed")
}

// TestUnsentSnapshotsPreventRetention expects that a rule that keeps unsent snapshots prevents the
// import of retention.
func TestUnsentSnapshotsPreventRetention(t *testing.T) {
	t.Parallel()
	f, r := jobsOf(t, Zrepl, `
jobs:
- name: s
  type: push
  connect: {type: local, listener_name: l, client_identity: c}
  filesystems: {"tank/a": true}
  snapshotting: {type: periodic, prefix: zrepl_, interval: 30m}
  pruning:
    keep_sender: [{type: not_replicated}, {type: last_n, count: 10}]
    keep_receiver: [{type: last_n, count: 20}]
- {name: t, type: sink, root_fs: b, serve: {type: local, listener_name: l}}
`)
	require.Nil(t, f.Jobs[0].Retention)
	require.Equal(t, 20, f.Jobs[0].Targets[0].Retention.Last)
	require.Contains(t, r.Text, "write [job.retention] with last = 10; until then, zxfer keeps all snapshots")
}
