package status

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
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
	s := Of([]*replicate.Job{{Name: "a", Schedule: "hourly"}, {Name: "b"}}, dir, time.Now(), nil)
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
	s := Of(jobs, dir, now, nil)
	require.Equal(t, []string{Late, Unknown}, []string{s.Jobs[0].State, s.Jobs[1].State})
	require.Equal(t, []bool{true, false}, []bool{s.Jobs[0].Late, s.Jobs[1].Late})

	store, err := statedir.Open(dir, "a")
	require.NoError(t, err)
	unlock, err := store.Lock(t.Context(), false)
	require.NoError(t, err)
	s = Of(jobs, dir, now, nil)
	require.True(t, s.Jobs[0].Running)
	require.False(t, s.Jobs[1].Running)
	require.True(t, s.Late, "a heal may hold the lock")
	require.Equal(t, Late, s.Jobs[0].State)
	unlock()
	s = Of(jobs, dir, now, nil)
	require.False(t, s.Jobs[0].Running)
	require.True(t, s.Late)
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
