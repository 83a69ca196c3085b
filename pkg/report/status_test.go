package report

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate/disk"
	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
)

// jobsInEveryState has one job of each state: ok, late by a second run, failed, interrupted, refused
// without a schedule, never run.
func jobsInEveryState() *status.Status {
	at := time.Date(2026, 11, 22, 8, 0, 0, 0, time.Local)
	job := func(name, state string, change func(*status.JobStatus)) *status.JobStatus {
		j := &status.JobStatus{Job: name, Source: "tank/" + name, State: state, RunSchedule: status.RunSchedule{Schedule: "hourly", Next: at.Add(time.Hour)}, LastRunStatus: status.LastRunStatus{LastRun: at, Seconds: 12, Outcome: "done"}, Verdict: status.Verdict{LagWarning: 900, LagCritical: 4500}, Datasets: []*status.DatasetStatus{{Source: "tank/" + name, To: "far", State: status.OK, Success: at, Bytes: 2048, Seconds: 3}}}
		if change != nil {
			change(j)
		}
		return j
	}
	return &status.Status{Late: true, Failed: true, Jobs: []*status.JobStatus{
		job("well", status.OK, nil),
		job("never", status.Unknown, func(j *status.JobStatus) {
			j.LastRun, j.Outcome, j.Late, j.Datasets = time.Time{}, "", true, nil
		}),
		job("cut", "interrupted", func(j *status.JobStatus) {
			j.Outcome, j.Failed, j.Datasets[0].Outcome, j.Datasets[0].Lag = "interrupted", true, "interrupted", 60
			j.Problems = []*status.Problem{{State: "interrupted", To: []string{"far"}, Datasets: []string{"tank/cut"}, Error: "lost | the\nhost"}}
		}),
		job("slow", status.Late, func(j *status.JobStatus) {
			j.Late, j.Lag, j.Datasets[0].Late, j.Datasets[0].Lag = true, 7200, true, 7200
		}),
		job("away", "failed", func(j *status.JobStatus) {
			j.Outcome, j.Failed, j.Late, j.Lag = "failed", true, true, 1800
			j.Datasets[0].Outcome, j.Datasets[0].Late, j.Datasets[0].Lag = "failed", true, 1800
			j.Problems = []*status.Problem{{State: "failed", To: []string{"far"}, Error: "beta: no route to host", Hint: "is it up? ssh beta"}}
		}),
		job("hand", "refused", func(j *status.JobStatus) {
			j.Schedule, j.Next, j.LagWarning, j.LagCritical = "", time.Time{}, 0, 0
			j.Outcome, j.Failed, j.Datasets[0].Outcome = "refused", true, "refused"
			j.Problems = []*status.Problem{{State: "refused", To: []string{"far"}, Datasets: []string{"a", "b", "c", "d"}, Error: "no"}}
		}),
	}}
}

func TestStatusText(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	require.NoError(t, StatusText(&b, jobsInEveryState(), ""))
	require.Equal(t, `well: tank/well, last run 2026-11-22 08:00:00, done in 12 s, next 2026-11-22 09:00:00
  tank/well  far  2026-11-22 08:00:00  on time  2.0 KiB in 3.0 s
never: tank/never, never ran, next 2026-11-22 09:00:00, LATE
cut: tank/cut, last run 2026-11-22 08:00:00, interrupted in 12 s, next 2026-11-22 09:00:00, INTERRUPTED
  interrupted: tank/cut to far: lost | the; host
  tank/cut  far  2026-11-22 08:00:00  INTERRUPTED, due for 1 min 0 s  2.0 KiB in 3.0 s
slow: tank/slow, last run 2026-11-22 08:00:00, done in 12 s, next 2026-11-22 09:00:00, LATE
  tank/slow  far  2026-11-22 08:00:00  LATE by 2 h 0 min  2.0 KiB in 3.0 s
away: tank/away, last run 2026-11-22 08:00:00, failed in 12 s, next 2026-11-22 09:00:00, FAILED, LATE
  failed: to far: beta: no route to host
    hint: is it up? ssh beta
  tank/away  far  2026-11-22 08:00:00  FAILED, LATE by 30 min 0 s  2.0 KiB in 3.0 s
hand: tank/hand, last run 2026-11-22 08:00:00, refused in 12 s, no schedule, REFUSED
  refused: a, b, c and 1 more to far: no
  tank/hand  far  2026-11-22 08:00:00  REFUSED  2.0 KiB in 3.0 s
`, b.String())
}

func TestNagios(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	level, err := Nagios(&b, jobsInEveryState())
	require.NoError(t, err)
	require.Equal(t, status.SeverityCritical, level)
	require.Equal(t, `ZXFER CRITICAL: slow: 1 of 1 dataset late by 2 h 0 min; away: failed: to far: beta: no route to host, 1 of 1 dataset late by 30 min 0 s; hand: refused: a, b, c and 1 more to far: no; cut: interrupted: tank/cut to ... (5 of 6 jobs)`+
		` | lag_well=0s;900;4500;0 failed_well=0;;0;0 datasets_well=1;;;0 lag_cut=0s;900;4500;0 failed_cut=0;;0;0 datasets_cut=1;;;0`+
		` lag_slow=7200s;900;4500;0 failed_slow=0;;0;0 datasets_slow=1;;;0 lag_away=1800s;900;4500;0 failed_away=1;;0;0 datasets_away=1;;;0`+
		` failed_hand=1;;0;0 datasets_hand=1;;;0
slow: CRITICAL
late by 2 h 0 min: tank/slow to far
away: CRITICAL
failed: to far: beta: no route to host
late by 30 min 0 s: tank/away to far
hand: CRITICAL
refused: a, b, c and 1 more to far: no
cut: WARNING
interrupted: tank/cut to far: lost / the; host
never: UNKNOWN
never ran
`, b.String())
}

// TestNagiosLevels expects one check for each job.
func TestNagiosLevels(t *testing.T) {
	t.Parallel()
	all := jobsInEveryState().Jobs
	for i, want := range []struct {
		level status.Severity
		line  string
	}{
		{status.SeverityOK, "ZXFER OK: 1 job, 1 dataset, none late or failed | lag_well=0s;900;4500;0 failed_well=0;;0;0 datasets_well=1;;;0"},
		{status.SeverityUnknown, "ZXFER UNKNOWN: never: never ran (1 of 1 job)"},
		{status.SeverityWarning, "ZXFER WARNING: cut: interrupted: tank/cut to far: lost / the; host (1 of 1 job) | "},
		{status.SeverityCritical, "ZXFER CRITICAL: slow: "},
		{status.SeverityCritical, "ZXFER CRITICAL: away: "},
		{status.SeverityCritical, "ZXFER CRITICAL: hand: "},
	} {
		var b strings.Builder
		level, err := Nagios(&b, &status.Status{Jobs: all[i : i+1]})
		require.NoError(t, err)
		require.Equal(t, want.level, level)
		require.True(t, strings.HasPrefix(b.String(), want.line), b.String())
	}
	never := *all[1]
	never.State, never.Lag, never.LagCritical = status.Late, 3600, 4500
	var b strings.Builder
	level, err := Nagios(&b, &status.Status{Jobs: []*status.JobStatus{&never}})
	require.NoError(t, err)
	require.Equal(t, status.SeverityWarning, level)
	require.True(t, strings.HasPrefix(b.String(), "ZXFER WARNING: never: never ran, late by 1 h 0 min (1 of 1 job) | lag_never=3600s;900;4500;0 "), b.String())
	never.Lag = 4501
	require.Equal(t, status.SeverityCritical, never.Severity(), "it missed a second run")
	slow := all[3]
	slow.Lag = slow.LagCritical
	require.Equal(t, status.SeverityWarning, slow.Severity(), "late, but not by a second run")
	slow.Lag = 0
	require.Equal(t, "lag_slow=U;900;4500;0", performance(summarizedJob{slow, status.Summarize(slow)})[0], "the delay is unknown")
}

// perfDatum matches the performance data that zxfer prints, in the format of the convention.
func perfDatum() *regexp.Regexp {
	return regexp.MustCompile(`^[a-zA-Z0-9_-]+=(-?[0-9]+s?|U);[0-9]*;[0-9]*;0$`)
}

// TestNagiosIsBounded expects that for any number of jobs and any text the output is short, and has
// one "|", after the first line.
func TestNagiosIsBounded(t *testing.T) {
	t.Parallel()
	s := &status.Status{}
	for i := range 200 {
		for _, j := range jobsInEveryState().Jobs {
			j.Job = fmt.Sprintf("%s-%d", j.Job, i)
			for _, p := range j.Problems {
				p.Error = strings.Repeat("é|\x1b[31m\n", 2000)
			}
			s.Jobs = append(s.Jobs, j)
		}
	}
	var b strings.Builder
	_, err := Nagios(&b, s)
	require.NoError(t, err)
	out := b.String()
	require.LessOrEqual(t, len(out), nagiosMax+1)
	first, rest, _ := strings.Cut(out, "\n")
	text, perf, ok := strings.Cut(first, " | ")
	require.True(t, ok)
	require.LessOrEqual(t, len(text), nagiosFirstLine+20)
	require.NotContains(t, text+perf+rest, "|")
	require.NotContains(t, out, "\x1b")
	require.Regexp(t, `\n\.\.\. and [0-9,]+ lines\n$`, out)
	for _, datum := range strings.Fields(perf) {
		require.Regexp(t, perfDatum(), datum)
	}
	b.Reset()
	require.NoError(t, NagiosUnknown(&b, fault.Usagef("", "there is no job file\n| x")))
	require.Equal(t, "ZXFER UNKNOWN: there is no job file; / x\n", b.String())
}

// TestRunInProgress covers the text for runs in progress.
func TestRunInProgress(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 22, 8, 0, 0, 0, time.Local)
	for _, c := range []struct {
		j    status.JobStatus
		want []string
	}{
		{status.JobStatus{}, []string{"never ran"}},
		{status.JobStatus{RunningStatus: status.RunningStatus{Running: true}}, []string{"never ran", "a run, heal or prune is in progress"}},
		{status.JobStatus{RunningStatus: status.RunningStatus{Running: true, RunningCommand: "zxfer heal tank (process 7)"}}, []string{"never ran", "zxfer heal tank (process 7) is in progress"}},
		{status.JobStatus{RunningStatus: status.RunningStatus{Running: true, RunningSince: at}}, []string{"the first run is in progress since 2026-11-22 08:00:00"}},
		{status.JobStatus{RunningStatus: status.RunningStatus{Running: true, RunningSince: at}, LastRunStatus: status.LastRunStatus{LastRun: at}}, []string{"a run is in progress since 2026-11-22 08:00:00"}},
		{status.JobStatus{LastRunStatus: status.LastRunStatus{LastRun: at}}, nil},
	} {
		require.Equal(t, c.want, InProgress(&c.j))
	}
}

// TestStatusOfDisks expects the state of each disk, and the alarm of the late one only.
func TestStatusOfDisks(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 22, 8, 0, 0, 0, time.Local)
	j := &status.JobStatus{Job: "home", Source: "tank/home", State: status.Late, Late: true, LastRunStatus: status.LastRunStatus{LastRun: at, Outcome: "done"}, WaitStatus: status.WaitStatus{Disks: []*status.DiskStatus{
		{To: "offsite-blue", Pool: "offsite", GUID: 1<<64 - 1, State: "removable", Since: at, Removable: true, Scrubbed: at, LateAfter: at.Add(time.Hour)},
		{To: "offsite-red", Pool: "offsite", GUID: 2, State: "away", Since: at, Late: true, LateAfter: at, Reason: "why\n\x1b[31m"},
	}}, Verdict: status.Verdict{Problems: []*status.Problem{{State: status.Late, To: []string{"offsite-red"}, Error: "the disk (pool offsite) is away since 2026-11-22 08:00:00; its copies are late"}}}}
	var b strings.Builder
	require.NoError(t, StatusText(&b, &status.Status{Jobs: []*status.JobStatus{j}}, ""))
	require.Equal(t, `home: tank/home, last run 2026-11-22 08:00:00, done in 0.0 s, no schedule, LATE
  late: to offsite-red: the disk (pool offsite) is away since 2026-11-22 08:00:00; its copies are late
  disk offsite-blue (pool offsite, GUID 18446744073709551615): removable since 2026-11-22 08:00:00, may be removed, scrubbed 2026-11-22 08:00:00, late after 2026-11-22 09:00:00
  disk offsite-red (pool offsite, GUID 2): away since 2026-11-22 08:00:00, LATE since 2026-11-22 08:00:00: why; ?[31m
`, b.String())
	b.Reset()
	level, err := Nagios(&b, &status.Status{Jobs: []*status.JobStatus{j}})
	require.NoError(t, err)
	require.Equal(t, status.SeverityWarning, level)
	require.Contains(t, b.String(), "ZXFER WARNING: home: late: to offsite-red: the disk (pool offsite) is away since 2026-11-22 08:00:00")
}

// TestRunCountsInterrupted expects a target to count interrupted datasets apart from failed ones.
func TestRunCountsInterrupted(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	require.NoError(t, RunText(&b, &statedir.Run{Job: "home", Outcome: outcome.Interrupted, Targets: []*statedir.TargetRun{{Target: "far", To: "v/home", Outcome: outcome.Failed, Sent: 1, Failed: 3,
		Datasets: []outcome.Dataset{{Outcome: outcome.Done}, {Outcome: outcome.Interrupted}, {Outcome: outcome.Failed}, {Outcome: outcome.Interrupted}}}}}))
	require.Contains(t, b.String(), "1 sent (0 B), 0 unchanged, 1 failed, 2 interrupted, 0 destroyed\n")
}

// TestRunOfDisks expects the state of disks in the result of a run.
func TestRunOfDisks(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 22, 8, 0, 0, 0, time.Local)
	var b strings.Builder
	require.NoError(t, RunText(&b, &statedir.Run{Job: "home", Outcome: "done", Targets: []*statedir.TargetRun{
		{Target: "offsite-blue", To: "offsite/home", Outcome: "done", Sent: 1, Disk: "removable", DiskSince: at},
		{Target: "offsite-red", To: "offsite/home", Disk: "away", DiskSince: at},
	}}))
	require.Equal(t, `home: done in 0.0 s
  offsite-blue (offsite/home): done: 1 sent (0 B), 0 unchanged, 0 failed, 0 destroyed
    disk removable, may be removed
  offsite-red (offsite/home): disk away since 2026-11-22 08:00:00
`, b.String())
	b.Reset()
	require.NoError(t, PreviewText(&b, &runner.Preview{Job: "home", Source: "tank/home", Targets: []*runner.TargetPreview{
		{Target: "offsite-blue", To: "offsite/home", Disk: &disk.Preview{State: "attached", GUID: 1, Next: "imports it", Warning: "cached", Hint: "zpool set cachefile=none offsite"}},
		{Target: "offsite-red", To: "offsite/home", Disk: &disk.Preview{State: "away", GUID: 2, Next: "sends nothing to it", Pools: []string{"us\x1bb (attached): 3"}}},
	}}, false))
	require.Equal(t, `home: tank/home, 0 datasets
  offsite-blue (offsite/home): disk with GUID 1 is attached; a run imports it
    warning: cached
    hint: zpool set cachefile=none offsite
  offsite-red (offsite/home): disk with GUID 2 is away; a run sends nothing to it
    found pool us?b (attached): 3
`, b.String())
}

// TestPreviewOfExposedCopies expects a warning and the command of the drill, also without -v.
func TestPreviewOfExposedCopies(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	require.NoError(t, PreviewText(&b, &runner.Preview{Job: "home", Source: "tank/home", Targets: []*runner.TargetPreview{
		{Target: "near", To: "vault/home", Plan: &plan.Plan{}, Exposed: []string{"vault/home"}, Drill: "zxfer replicate drill home"},
	}}, false))
	require.Contains(t, b.String(), `    warning: roles changed without a record that block sizes were compared, so files may have lost data: vault/home
    hint: zxfer replicate drill home
`)
}

// TestStatusShowsErrorOnce expects that a job shows a long error once, and refers to it.
func TestStatusShowsErrorOnce(t *testing.T) {
	t.Parallel()
	const long = "the former source of the copies cannot be reached"
	s := &status.Status{Jobs: []*status.JobStatus{{Job: "home", Verdict: status.Verdict{Problems: []*status.Problem{
		{State: "failed", Error: long, Hint: "do it"},
		{State: "refused", Datasets: []string{"tank/a"}, To: []string{"far"}, Error: long, Hint: "do it"},
		{State: "refused", Datasets: []string{"tank/b"}, To: []string{"far"}, Error: "another", Hint: "do that"},
	}}, Pools: []*status.PoolStatus{{Pool: "vault", To: "far", Unknown: long}}}}}
	var b strings.Builder
	require.NoError(t, StatusText(&b, s, ""))
	require.Equal(t, 1, strings.Count(b.String(), long), b.String())
	require.Equal(t, 1, strings.Count(b.String(), "hint: do it"), b.String())
	require.Contains(t, b.String(), "refused: tank/a to far: the same error\n")
	require.Contains(t, b.String(), "are unknown: the same error\n")
	require.Contains(t, b.String(), "hint: do that")
}
