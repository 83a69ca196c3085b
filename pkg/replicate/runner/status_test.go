package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/hosts/hoststest"
	"zxfer/pkg/job/heal"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

func TestStatusLateness(t *testing.T) {
	t.Parallel()
	eight := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	tests := []struct {
		name     string
		schedule string
		success  time.Time
		now      time.Time
		lag      time.Duration
		late     bool
	}{
		{"just done", "hourly", eight, eight.Add(time.Minute), 0, false},
		{"due", "hourly", eight, eight.Add(65 * time.Minute), 5 * time.Minute, false},
		{"late", "hourly", eight, eight.Add(76 * time.Minute), 16 * time.Minute, true},
		{"days late", "daily", eight.AddDate(0, 0, -3), eight, 56 * time.Hour, true},
		{"never", "hourly", time.Time{}, eight, 0, true},
		{"slightly in the future", "hourly", eight.Add(time.Minute), eight, 0, false},
		{"in the future: the clock was years ahead for a while", "hourly", eight.AddDate(4, 0, 0), eight, 0, true},
		{"test the connection", "", eight.AddDate(-1, 0, 0), eight, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			st := stateOfOne(replicate.Attempt{Success: tt.success})
			js := statusOf(&replicate.Job{Name: "j", Schedule: tt.schedule}, st, statusTimes{now: tt.now})
			require.Equal(t, tt.late, js.Late)
			require.Equal(t, tt.lag.Seconds(), js.Datasets[0].Lag)
			if by := js.Datasets[0].LateAfter; !by.IsZero() {
				require.Equal(t, tt.late, tt.now.After(by), by)
			}
		})
	}
	require.True(t, statusOf(&replicate.Job{Schedule: "hourly"}, &statedir.State{}, statusTimes{now: eight}).Late, "a scheduled job that never ran, since an unknown time")
	require.False(t, statusOf(&replicate.Job{}, &statedir.State{}, statusTimes{now: eight}).Late)
}

// TestStatusOfMissingCopy expects that a dataset that never arrived is late from its first
// attempt, and critical after a second missed run. The same applies if it arrived in the future.
func TestStatusOfMissingCopy(t *testing.T) {
	t.Parallel()
	eight := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	for name, success := range map[string]time.Time{"never": {}, "in the future": eight.AddDate(4, 0, 0)} {
		st := stateOfOne(replicate.Attempt{Success: success, Tried: success})
		a := st.Copy("tank/a", "near")
		for hour := range 3 {
			a.Record(eight.Add(time.Duration(hour)*time.Hour), context.Canceled)
		}
		js := statusOf(&replicate.Job{Name: "j", Schedule: "hourly"}, st, statusTimes{now: eight.Add(150 * time.Minute)})
		require.True(t, js.Late, name)
		require.Equal(t, (150 * time.Minute).Seconds(), js.Lag, name)
		require.Equal(t, []float64{900, 4500}, []float64{js.LagWarning, js.LagCritical}, name)
		a.Record(eight.Add(3*time.Hour), nil)
		a.Record(eight.Add(4*time.Hour), context.Canceled)
		js = statusOf(&replicate.Job{Name: "j", Schedule: "hourly"}, st, statusTimes{now: eight.Add(4*time.Hour + time.Minute)})
		require.Equal(t, time.Minute.Seconds(), js.Lag, "later arrivals count: %s", name)
	}
	older := stateOfOne(replicate.Attempt{Tried: eight})
	js := statusOf(&replicate.Job{Name: "j", Schedule: "hourly"}, older, statusTimes{now: eight.Add(time.Hour)})
	require.Equal(t, time.Hour.Seconds(), js.Lag, "as an older version wrote it")
}

func stateOfOne(a replicate.Attempt) *statedir.State {
	s := &statedir.State{State: replicate.State{Datasets: map[string]*replicate.DatasetState{}}}
	s.Copy("tank/a", "near").Attempt = a
	return s
}

func TestTag(t *testing.T) {
	t.Parallel()
	job, ours := replicate.JobOfTag(replicate.Tag("home", "near"))
	require.True(t, ours)
	require.Equal(t, "home", job)
	for _, other := range []string{"keep", "zxfer:", "zxfer:home", "zrepl_last_received_J_home"} {
		_, ours := replicate.JobOfTag(other)
		require.False(t, ours, other)
	}
}

func TestShortenedStatus(t *testing.T) {
	t.Parallel()
	s := &Status{Jobs: []*JobStatus{{Job: "a", Datasets: []*DatasetStatus{
		{Source: "on time", State: OK}, {Source: "late", State: Late}, {Source: "failed", State: "failed"},
	}}, {Job: "b", Datasets: []*DatasetStatus{{Source: "on time", State: OK}}}}}
	s.Shorten()
	require.Len(t, s.Jobs, 2, "all jobs are shown")
	require.Equal(t, []*DatasetStatus{{Source: "late", State: Late}, {Source: "failed", State: "failed"}}, s.Jobs[0].Datasets)
	require.Equal(t, []*DatasetStatus{}, s.Jobs[1].Datasets, "an empty array in JSON")
}

// TestStatusOfUnreadableRecords expects that records that are damaged or of another version affect
// only their job.
func TestStatusOfUnreadableRecords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "a"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a", "state.json"), []byte("{"), 0o600))
	s := StatusOf([]*replicate.Job{{Name: "a", Schedule: "hourly"}, {Name: "b"}}, dir, time.Now(), nil)
	require.True(t, s.Failed)
	require.False(t, s.Late)
	require.Equal(t, Unknown, s.Jobs[0].State)
	require.Contains(t, s.Jobs[0].Problems[0].Error, "state.json is damaged")
	require.NotEmpty(t, s.Jobs[0].Problems[0].Hint)
	require.False(t, s.Jobs[1].Failed, "it never ran")
	require.Equal(t, Unknown, s.Jobs[1].State)
	j := statusOf(&replicate.Job{}, &statedir.State{LastRun: &statedir.Run{Outcome: "\x1b[2J"}}, statusTimes{now: time.Now()})
	require.Equal(t, outcome.Failed, j.State, "an unknown word")
}

// TestMetricsBeforeTheFirstRun expects that the known metrics are written before the first run,
// without a state directory.
func TestMetricsBeforeTheFirstRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := &replicate.File{Metrics: replicate.Metrics{Textfile: filepath.Join(dir, "zxfer.prom")}, Jobs: []replicate.Job{{Name: "home"}}}
	require.NoError(t, WriteMetrics(t.Context(), f, filepath.Join(dir, "none", "state"), time.Now()))
	text, err := os.ReadFile(f.Metrics.Textfile)
	require.NoError(t, err)
	require.Contains(t, string(text), "# TYPE zxfer_replicate_last_run_success gauge\n")
}

// TestMetricsOfDueTimes expects that metrics state when a dataset or drill becomes late, because
// monitoring does not know the schedule.
func TestMetricsOfDueTimes(t *testing.T) {
	t.Parallel()
	eight := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	dir := t.TempDir()
	st := stateOfOne(replicate.Attempt{Success: eight})
	st.Copy("tank/b", "near").Record(eight, context.Canceled)
	st.DrillSince = eight
	store, err := statedir.Open(dir, "home")
	require.NoError(t, err)
	require.NoError(t, store.Save(st))
	f := &replicate.File{Jobs: []replicate.Job{
		{Name: "home", Source: "tank", Recursive: true, Schedule: "hourly", Targets: []replicate.Target{{Name: "near"}}, Drill: &replicate.Drill{Schedule: "daily"}},
		{Name: "new", Schedule: "daily"},
		{Name: "hand"},
	}}
	text, err := Metrics(f, dir, eight.Add(90*time.Minute))
	require.NoError(t, err)
	for sample, want := range map[string]time.Time{
		`next_run_seconds{job="home"}`:                                         eight.Add(2 * time.Hour),
		`next_run_seconds{job="new"}`:                                          eight.Add(16 * time.Hour),
		`dataset_late_after_seconds{job="home",source="tank/a",target="near"}`: eight.Add(75 * time.Minute),
		`dataset_late_after_seconds{job="home",source="tank/b",target="near"}`: eight,
		`drill_late_after_seconds{job="home"}`:                                 eight.Add(40 * time.Hour),
	} {
		require.Contains(t, string(text), fmt.Sprintf("\nzxfer_replicate_%s %d\n", sample, want.Unix()))
	}
	require.NotContains(t, string(text), `seconds{job="hand"`)
}

// TestStatusOfFirstRun expects that a job that never ran is late if it has a schedule, and
// otherwise unknown. The lock shows a run or heal in progress.
func TestStatusOfFirstRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	jobs := []*replicate.Job{{Name: "a", Schedule: "hourly"}, {Name: "b"}}
	now := time.Unix(1e9, 0)
	s := StatusOf(jobs, dir, now, nil)
	require.Equal(t, []string{Late, Unknown}, []string{s.Jobs[0].State, s.Jobs[1].State})
	require.Equal(t, []bool{true, false}, []bool{s.Jobs[0].Late, s.Jobs[1].Late})

	store, err := statedir.Open(dir, "a")
	require.NoError(t, err)
	unlock, err := store.Lock(t.Context(), false)
	require.NoError(t, err)
	s = StatusOf(jobs, dir, now, nil)
	require.True(t, s.Jobs[0].Running)
	require.False(t, s.Jobs[1].Running)
	require.True(t, s.Late, "a heal may hold the lock")
	require.Equal(t, Late, s.Jobs[0].State)
	unlock()
	s = StatusOf(jobs, dir, now, nil)
	require.False(t, s.Jobs[0].Running)
	require.True(t, s.Late)
}

// TestStatusOfDamagedPools expects that the record lists pools with data errors, and that status
// names the command that repairs them until they are repaired. For an unreachable target, the
// previous errors remain, and the state is older.
func TestStatusOfDamagedPools(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M", SkipUnchanged: true}})
	r.Damaged = zfs.Damage{Objects: []zfs.DamagedObject{{Dataset: "dst/copy", Path: "/f", Shown: "/dst/copy/f"}, {Dataset: "dst/other", Shown: "dst/other:<0x1>"}}}
	_, err := r.runner(t).Run(t.Context(), r.job, false)
	require.NoError(t, err)
	checked, unknown := time.Unix(r.now, 0).UTC(), ""
	damaged := func() {
		t.Helper()
		st := r.status(t)
		require.Equal(t, Damaged, st.State)
		require.Len(t, st.Problems, 1)
		require.Equal(t, []string{"t"}, st.Problems[0].To)
		require.Contains(t, st.Problems[0].Error, "pool dst has data errors")
		require.Contains(t, st.Problems[0].Error, "2 data errors")
		require.Contains(t, st.Problems[0].Error, "; a copy can repair them")
		require.Equal(t, "to repair them from src: zxfer heal --job j", st.Problems[0].Hint)
		require.Len(t, st.Pools, 2)
		require.Equal(t, &PoolStatus{Pool: "src", State: OK, Checked: time.Unix(r.now, 0).UTC()}, st.Pools[0])
		require.Equal(t, &PoolStatus{To: "t", Pool: "dst", State: Damaged, Checked: checked, Unknown: unknown, Errors: 2, Repair: heal.RepairFull, Copies: []string{"src"}}, st.Pools[1])
		text, err := Metrics(&replicate.File{Jobs: []replicate.Job{*r.job}}, r.dir, time.Unix(r.now, 0))
		require.NoError(t, err)
		require.Contains(t, string(text), `zxfer_replicate_pool_data_errors{job="j",target="t",pool="dst"} 2`)
		require.Contains(t, string(text), `zxfer_replicate_pool_repairable{job="j",target="t",pool="dst"} 1`)
		require.Contains(t, string(text), fmt.Sprintf(`zxfer_replicate_pool_checked_seconds{job="j",target="t",pool="dst"} %d`, checked.Unix()))
	}
	damaged()
	r.before = func(op string, names []string) error {
		if op == zfs.OpStatus && names[0] == "dst" {
			return errors.New("no answer")
		}
		return nil
	}
	r.now += 60
	unknown = "no answer"
	r.run(t) // sends nothing, and gets no answer about the pool
	damaged()
	r.before = nil

	// Damage of other datasets becomes a note and does not affect this job's state.
	r.Damaged.Objects = r.Damaged.Objects[1:]
	r.now += 60
	run, _ := r.run(t)
	require.Zero(t, run.Targets[0].Sent)
	require.Equal(t, []string{"pool dst has data errors outside of dst/copy: to list them: zpool status -v dst"}, run.Notes)
	require.Equal(t, OK, r.status(t).State)

	// If there is nothing to send and the target had no data errors, the run does not connect to
	// it, but once a day.
	r.Damaged.Objects = []zfs.DamagedObject{{Dataset: "dst/copy", Path: "/f", Shown: "/dst/copy/f"}}
	r.now += 60
	r.run(t)
	require.Equal(t, OK, r.status(t).State)
	r.now += 24 * 3600
	r.run(t)
	require.Equal(t, Damaged, r.status(t).State)
}

// TestStatusOfUnknownPools expects that a pool whose host does not list its errors is unknown
// instead of healthy, and that the job's state does not depend on it.
func TestStatusOfUnknownPools(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(r *replica)
		want   string
	}{
		"the host does not answer": {func(r *replica) { r.fail(zfs.OpStatus, "dst", errors.New("no answer")) }, "no answer"},
		"an option in the error":   {func(r *replica) { r.fail(zfs.OpStatus, "dst", errors.New("{{trusted-link}} is missing")) }, "transfer.trusted_link = true is missing"},
		"the key is restricted":    {func(r *replica) { r.fail(zfs.OpStatus, "dst", fault.Refusef("", "the policy forbids it")) }, "the policy forbids it"},
		"the target failed":        {func(r *replica) { r.away = "dst" }, "the last run ended before it asked"},
		"the run failed":           {func(r *replica) { r.away = "src" }, "the last run ended before it asked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}})
			r.run(t)
			st := r.status(t)
			require.Equal(t, []string{OK, OK}, []string{st.Pools[0].State, st.Pools[1].State})
			first := st.Pools[1].Checked
			r.now += 60
			tt.change(r)
			r.run(t)
			p := r.status(t).Pools[1]
			require.Equal(t, Unknown, p.State)
			require.Contains(t, p.Unknown, tt.want)
			require.Equal(t, first, p.Checked)
			require.NotEqual(t, Damaged, r.status(t).State)
			var shown strings.Builder // each error once
			for _, p := range r.status(t).Problems {
				shown.WriteString(p.Error + "\n")
			}
			for _, p := range r.status(t).Pools {
				shown.WriteString(p.Unknown + "\n")
			}
			require.LessOrEqual(t, strings.Count(shown.String(), "no route to host"), 1, shown.String())
			text, err := Metrics(&replicate.File{Jobs: []replicate.Job{*r.job}}, r.dir, time.Unix(r.now, 0))
			require.NoError(t, err)
			require.Contains(t, string(text), fmt.Sprintf(`zxfer_replicate_pool_checked_seconds{job="j",target="t",pool="dst"} %d`, first.Unix()))
			require.NotContains(t, string(text), "zxfer_replicate_pool_repairable{")
			r.before, r.away = nil, ""
			r.now += 60
			r.run(t)
			require.Equal(t, OK, r.status(t).Pools[1].State)
		})
	}
}

// TestStatusAsksEachPoolOnce damages many datasets on both sides. It expects one query for each
// side, and no stream.
func TestStatusAsksEachPoolOnce(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M", SkipUnchanged: true}})
	r.run(t)
	for _, d := range []string{"src", "src/a", "dst/copy", "dst/copy/a"} {
		for _, f := range []string{"/f", "/g"} {
			r.Damaged.Objects = append(r.Damaged.Objects, zfs.DamagedObject{Dataset: d, Path: f, Shown: d + ":" + f})
		}
	}
	asked := map[string]int{}
	r.before = func(op string, names []string) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		asked[op+" "+names[0]]++
		return nil
	}
	r.now += 25 * 3600
	r.run(t)
	require.Equal(t, 1, asked[zfs.OpStatus+" src"])
	require.Equal(t, 1, asked[zfs.OpStatus+" dst"])
	require.Zero(t, asked[zfs.OpSend+" src"]+asked[zfs.OpSend+" dst/copy"])
	for _, p := range r.status(t).Pools {
		require.Equal(t, []any{Damaged, heal.RepairUnknown}, []any{p.State, p.Repair})
		require.Contains(t, p.Why, "it is damaged")
	}
}

// TestTargetCannotBlameSource lets a target answer with errors of the source. It expects that only
// the target is damaged, and that the source's host is asked about the source.
func TestTargetCannotBlameSource(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}})
	blaming := blamingReplica{r}
	_, err := New(r.dir, blaming, func() time.Time { return time.Unix(r.now, 0) }, func(s string) { t.Log(s) }).Run(t.Context(), r.job, false)
	require.NoError(t, err)
	st := r.status(t)
	require.Equal(t, []string{OK, Damaged}, []string{st.Pools[0].State, st.Pools[1].State})
	require.Len(t, st.Problems, 1)
	require.Equal(t, []string{"t"}, st.Problems[0].To)
	require.Contains(t, st.Problems[0].Error, "pool dst has data errors")
	text, err := Metrics(&replicate.File{Jobs: []replicate.Job{*r.job}}, r.dir, time.Unix(r.now, 0))
	require.NoError(t, err)
	require.NotContains(t, string(text), `zxfer_replicate_pool_data_errors{job="j",target="",`)
}

// blamingReplica is a replica whose target claims that the source is damaged.
type blamingReplica struct{ *replica }

func (b blamingReplica) Open(ctx context.Context, l hosts.Address) (hosts.Host, error) {
	s, err := b.replica.Open(ctx, l)
	return blamingHost{s.(captured)}, err
}

type blamingHost struct{ captured }

func (b blamingHost) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, b.captured, r, hoststest.With(hosts.OpDamage, func(_ context.Context, dataset string) (zfs.Damage, error) {
		if dataset == "dst/copy" {
			return zfs.Damage{Objects: []zfs.DamagedObject{{Dataset: "src", Path: "/f", Shown: "src:/f"}}, PoolErrors: 3}, nil
		}
		return zfs.Damage{}, nil
	}))
}

// TestDecodedPoolStates expects that an unknown word for a pool's state counts as damage.
func TestDecodedPoolStates(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]string{OK: OK, Unknown: OK, Damaged: Damaged, "fine": Damaged, "": Damaged} {
		j := &JobStatus{State: OK, Pools: []*PoolStatus{{State: state}}}
		j.Normalize()
		require.Equal(t, want, j.State, state)
	}
}

// TestStatusOfPoolMetadataDamage expects that damage of the pool itself concerns each job on
// both sides, even if the text is the same. The hosts have an OpenZFS that cannot heal.
func TestStatusOfPoolMetadataDamage(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}})
	r.job.Source, r.job.Targets[0].To = "src/a", "src/copy"
	r.Damaged = zfs.Damage{Objects: []zfs.DamagedObject{{Object: "0x3d", Shown: "<metadata>:<0x3d>"}}}
	_, err := New(r.dir, oldZFSReplica{r}, func() time.Time { return time.Unix(r.now, 0) }, func(s string) { t.Log(s) }).Run(t.Context(), r.job, false)
	require.NoError(t, err)
	require.Equal(t, Damaged, r.status(t).State)
	text, err := Metrics(&replicate.File{Jobs: []replicate.Job{*r.job}}, r.dir, time.Unix(r.now, 0))
	require.NoError(t, err)
	for _, target := range []string{"", "t"} {
		require.Contains(t, string(text), `zxfer_replicate_pool_data_errors{job="j",target="`+target+`",pool="src"} 1`)
	}
}

// oldZFSReplica is a replica whose hosts have OpenZFS 2.1.
type oldZFSReplica struct{ *replica }

func (o oldZFSReplica) Open(ctx context.Context, l hosts.Address) (hosts.Host, error) {
	s, err := o.replica.Open(ctx, l)
	return &oldHost{s.(captured).Local}, err
}

type oldHost struct{ *hosts.Local }

func (o *oldHost) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, o.Local, r, hoststest.With(hosts.OpFacts, func(context.Context, hosts.None) (hosts.Facts, error) {
		return hosts.Facts{ZFS: "2.1.11-1"}, nil
	}))
}

// TestJobThatNeverRanBecomesLate covers the time since the schedule took effect.
func TestJobThatNeverRanBecomesLate(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 11, 21, 7, 30, 0, 0, time.UTC)
	for _, c := range []struct {
		name, schedule, state string
		after, lag            time.Duration
		critical              bool
	}{
		{"not due yet", "hourly", OK, 20 * time.Minute, 0, false},
		{"due", "hourly", OK, 44 * time.Minute, 14 * time.Minute, false},
		{"late", "hourly", Late, 46 * time.Minute, 16 * time.Minute, false},
		{"a second run was missed", "hourly", Late, 106 * time.Minute, 76 * time.Minute, true},
		{"for days", "hourly", Late, 72 * time.Hour, 72*time.Hour - 30*time.Minute, true},
		{"no schedule", "", Unknown, 72 * time.Hour, 0, false},
	} {
		js := statusOf(&replicate.Job{Name: "j", Schedule: c.schedule}, &statedir.State{}, statusTimes{now: since.Add(c.after), since: since})
		require.Equal(t, c.state, js.State, c.name)
		require.Equal(t, c.state == Late, js.Late, c.name)
		require.Equal(t, c.lag.Seconds(), js.Lag, c.name)
		require.Equal(t, c.critical, js.LagCritical > 0 && js.Lag > js.LagCritical, c.name)
	}
	js := statusOf(&replicate.Job{Schedule: "hourly"}, &statedir.State{}, statusTimes{now: since, since: since.AddDate(1, 0, 0)})
	require.True(t, js.Late, "the clock was wrong when the file was written")
}

// TestLongRunIsNotLate covers a run that lasts longer than the period of its schedule.
func TestLongRunIsNotLate(t *testing.T) {
	t.Parallel()
	eight := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	j := &replicate.Job{Name: "j", Schedule: "hourly"}
	st := stateOfOne(replicate.Attempt{Success: eight})
	nine := eight.Add(time.Hour)
	for _, c := range []struct {
		name  string
		w     statusTimes
		late  bool
		lag   time.Duration
		never bool
	}{
		{"no run", statusTimes{now: nine.Add(5 * time.Hour)}, true, 5 * time.Hour, false},
		{"since it was due", statusTimes{now: nine.Add(5 * time.Hour), run: nine.Add(time.Second)}, false, time.Second, false},
		{"started late", statusTimes{now: nine.Add(5 * time.Hour), run: nine.Add(time.Hour)}, true, time.Hour, false},
		{"for more than a day", statusTimes{now: nine.Add(25 * time.Hour), run: nine}, true, 25 * time.Hour, false},
		{"started in the future", statusTimes{now: nine.Add(5 * time.Hour), run: nine.Add(6 * time.Hour)}, true, 5 * time.Hour, false},
		{"the first run", statusTimes{now: nine.Add(5 * time.Hour), run: nine.Add(time.Second), since: eight}, false, time.Second, true},
	} {
		of := st
		if c.never {
			of = &statedir.State{}
		}
		js := statusOf(j, of, c.w)
		require.Equal(t, c.late, js.Late, c.name)
		require.Equal(t, c.lag.Seconds(), js.Lag, c.name)
	}
}

// TestMetricsWithUnreadableRecords covers a damaged record.
func TestMetricsWithUnreadableRecords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	eight := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	for _, job := range []string{"a", "b"} {
		store, err := statedir.Open(dir, job)
		require.NoError(t, err)
		require.NoError(t, store.Save(stateOfOne(replicate.Attempt{Success: eight})))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a", "state.json"), []byte("{"), 0o600))
	f := &replicate.File{Metrics: replicate.Metrics{Textfile: filepath.Join(dir, "zxfer.prom")},
		Jobs: []replicate.Job{{Name: "a", Schedule: "hourly"}, {Name: "b", Source: "tank", Schedule: "hourly", Targets: []replicate.Target{{Name: "near"}}}}}
	err := WriteMetrics(t.Context(), f, dir, eight)
	require.ErrorContains(t, err, `job "a"`)
	require.ErrorContains(t, err, "state.json is damaged")
	text, err := os.ReadFile(f.Metrics.Textfile)
	require.NoError(t, err)
	require.Contains(t, string(text), fmt.Sprintf("dataset_last_success_seconds{job=\"b\",source=\"tank/a\",target=\"near\"} %d\n", eight.Unix()))
	require.Contains(t, string(text), `next_run_seconds{job="a"}`)
	require.NotContains(t, string(text), `source="tank/a",target="near",job="a"`)
}
