package report

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/fleet"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
)

// TestPausedJobs expects that a pause is shown, that it is OK, and that a forgotten one is a warning.
func TestPausedJobs(t *testing.T) {
	t.Parallel()
	s := jobsInEveryState()
	s.Jobs = s.Jobs[:1]
	j := s.Jobs[0]
	at := time.Date(2026, 11, 22, 8, 0, 0, 0, time.Local)
	j.Pause = &status.PauseStatus{Since: at, Until: at.Add(8 * time.Hour), Reason: "new | {{wire}} switch\n\x1b[2J", By: "alice"}
	j.Windows = []status.ClosedWindow{{To: "far", Until: at.Add(10 * time.Hour)}}
	var b strings.Builder
	require.NoError(t, StatusText(&b, s, ""))
	require.Contains(t, b.String(), "done in 12 s, paused until 2026-11-22 16:00:00 (new | {{wire}} switch ?[2J, by alice), no transfers to far until 2026-11-22 18:00:00 (bandwidth_window), next ")

	b.Reset()
	level, err := Nagios(&b, s)
	require.NoError(t, err)
	require.Equal(t, status.SeverityOK, level)
	require.True(t, strings.HasPrefix(b.String(), "ZXFER OK: 1 job, 1 dataset, none late or failed, 1 paused | "), b.String())
	require.Contains(t, b.String(), "\nwell: paused until 2026-11-22 16:00:00 (new / {{wire}} switch ?[2J, by alice), no transfers to far ")

	b.Reset()
	require.NoError(t, HostsText(&b, &fleet.Fleet{Hosts: []*fleet.Host{{Host: "web1", State: status.OK, Jobs: []*fleet.Job{{JobStatus: j}}}}}, false))
	require.Contains(t, b.String(), "paused until 2026-11-22 16:00:00")

	j.Pause = &status.PauseStatus{Since: at, TransfersOnly: true, Forgotten: true, Reason: strings.Repeat("x", 5000)}
	b.Reset()
	level, err = Nagios(&b, s)
	require.NoError(t, err)
	require.Equal(t, status.SeverityWarning, level)
	require.True(t, strings.HasPrefix(b.String(), "ZXFER WARNING: well: transfers paused until resume (xxx"), b.String())
	require.LessOrEqual(t, len(b.String()), nagiosMax)
	j.State = "failed"
	require.Equal(t, status.SeverityCritical, j.Severity(), "a pause does not hide a failure")
}

// TestSkippedRunText covers records of runs that a pause or a window changed.
func TestSkippedRunText(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	require.NoError(t, RunText(&b, &statedir.Run{Job: "home", Outcome: "up-to-date", Paused: "paused until resume ({{wire}})", Skipped: true}))
	require.NoError(t, RunText(&b, &statedir.Run{Job: "home", Outcome: "done", Snapshots: 1, Targets: []*statedir.TargetRun{
		{Target: "far", To: "b:v", Paused: "no transfers until 18:00 (bandwidth_window)", Sent: 1, Held: 1, Bytes: 1024}}}))
	require.Equal(t, `home: paused until resume ({{wire}}): nothing done
home: done in 0.0 s, 1 snapshot taken
  far (b:v): no transfers until 18:00 (bandwidth_window): 1 sent (1.0 KiB), the next run sends the rest
`, b.String())
}
