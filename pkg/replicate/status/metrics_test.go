package status

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
)

// render returns the metrics of jobs.
func render(jobs ...*JobStatus) string {
	text, _ := exposition(jobs)
	return text
}

// FuzzMetrics expects that no name adds a line, or makes the file invalid for the collector.
func FuzzMetrics(f *testing.F) {
	for _, odd := range []string{"home", "a\nevil 1", `a"} 1`, `\`, `\n`, "\xff", "\r", "{", "ä"} {
		f.Add(odd, "tank/a", "near")
		f.Add("home", odd, odd)
	}
	f.Fuzz(func(t *testing.T, job, source, target string) {
		if target == "" { // a job without a target has fewer metrics
			return
		}
		of := func(job, source, target string) string {
			return render(&JobStatus{Job: job, LastRunStatus: LastRunStatus{LastRun: time.Unix(1, 0), Seconds: 1}, Datasets: []*DatasetStatus{{Source: source, To: target, Success: time.Unix(1, 0)}}})
		}
		got, want := of(job, source, target), of("j", "s", "t")
		require.True(t, utf8.ValidString(got))
		require.Equal(t, strings.Count(want, "\n"), strings.Count(got, "\n"))
		if !utf8.ValidString(job) || !utf8.ValidString(source) || !utf8.ValidString(target) {
			return
		}
		lines := strings.Split(got, "\n")
		label := strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")
		for i, l := range strings.Split(want, "\n") {
			if name, labels, ok := strings.Cut(l, "{"); ok && !strings.HasPrefix(l, "#") {
				rest, ok := strings.CutPrefix(lines[i], name+`{job="`)
				require.True(t, ok, lines[i])
				require.True(t, strings.HasPrefix(label.Replace(rest), job+`"`), lines[i])
				require.Equal(t, labels[strings.LastIndex(labels, "}"):], rest[strings.LastIndex(rest, "}"):])
			}
		}
	})
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	st := &statedir.State{State: replicate.State{Datasets: map[string]*replicate.DatasetState{}}, LastRun: &statedir.Run{Started: at, Ended: at.Add(3 * time.Second), Outcome: outcome.Done}}
	st.Copy("tank/a", "near").Record(at, nil)
	st.Copy("tank/b", "near").Record(at, fault.Failf("", "broken"))
	text := render(statusOf(&replicate.Job{Name: `a"b`}, st, statusTimes{now: at}))
	for _, want := range []string{
		"# TYPE zxfer_replicate_last_run_success gauge\nzxfer_replicate_last_run_success{job=\"a\\\"b\"} 1\n",
		"zxfer_replicate_last_run_state{job=\"a\\\"b\",state=\"ok\"} 1\n",
		"zxfer_replicate_last_run_duration_seconds{job=\"a\\\"b\"} 3\n",
		fmt.Sprintf("zxfer_replicate_dataset_last_success_seconds{job=\"a\\\"b\",source=\"tank/a\",target=\"near\"} %d\n", at.Unix()),
		"zxfer_replicate_dataset_failed{job=\"a\\\"b\",source=\"tank/b\",target=\"near\"} 1\n",
	} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "last_success_seconds{job=\"a\\\"b\",source=\"tank/b\"", "never is not 1970")
}

// TestMetricsOfEarlyEnd expects that the metrics of a run that ended before it reached any target do not
// repeat those of the run before.
func TestMetricsOfEarlyEnd(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	for _, before := range []error{nil, fault.Failf("", "broken")} {
		for _, ended := range []string{outcome.Failed, outcome.Interrupted, outcome.UpToDate} {
			run := &statedir.Run{Started: at, Ended: at, Outcome: ended, Targets: []*statedir.TargetRun{{Target: "near"}}}
			failed := 0
			if ended != outcome.UpToDate {
				run.Error, failed = "beta: no route to host", 1
			}
			st := &statedir.State{State: replicate.State{Datasets: map[string]*replicate.DatasetState{}}, LastRun: run}
			a := st.Copy("tank/a", "near")
			a.Record(at.Add(-24*time.Hour), before)
			a.Bytes = 4711
			text := render(statusOf(&replicate.Job{Name: "j", Targets: []replicate.Target{{Name: "near"}}}, st, statusTimes{now: at}))
			labels := `{job="j",source="tank/a",target="near"}`
			require.Contains(t, text, fmt.Sprintf("zxfer_replicate_dataset_failed%s %d\n", labels, failed), "%s after %v", ended, before)
			require.Contains(t, text, "zxfer_replicate_dataset_last_bytes"+labels+" 0\n", ended)
		}
	}
}

// TestMetricsOfCriticalTimes expects the time after which Nagios is critical, and none without a second scheduled time.
func TestMetricsOfCriticalTimes(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	for schedule, want := range map[string]time.Duration{"hourly": 2*time.Hour + defaultGrace, "2026-11-21 09:00": 0, "": 0} {
		for success, late := range map[time.Time]time.Duration{at: want, {}: max(0, want-time.Hour)} { // or since the first attempt
			st := &statedir.State{State: replicate.State{Datasets: map[string]*replicate.DatasetState{}}, DrillSince: at}
			a := st.Copy("tank/a", "near")
			a.Success, a.Tried = success, at
			j := &replicate.Job{Name: "j", Schedule: schedule, Targets: []replicate.Target{{Name: "near"}}, Drill: &replicate.Drill{Schedule: schedule}}
			for _, now := range []time.Time{at, at.Add(late - time.Second), at.Add(late + time.Second)} {
				js := statusOf(j, st, statusTimes{now: now})
				text := render(js)
				sample := fmt.Sprintf("critical_after_seconds{job=\"j\",source=\"tank/a\",target=\"near\"} %d\n", at.Add(late).Unix())
				require.Equal(t, late > 0, strings.Contains(text, sample), "%s after %s: %s", schedule, success, text)
				require.Equal(t, late > 0 && now.After(at.Add(late)), js.Severity() == SeverityCritical, "%s after %s at %s", schedule, success, now)
				require.NotContains(t, text, "} -")
			}
		}
	}
}
