package runner

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/zfs"
)

// hourly is a relay whose jobs run at the full hour and 20 minutes later.
type hourly struct{ *relay }

func newHourly(t *testing.T) *hourly {
	t.Helper()
	r := &hourly{newRelay(t)}
	r.on.job.Schedule = "*:20"
	return r
}

// clock sets the time of day.
func (r *hourly) clock(hour, minute int) time.Time {
	at := time.Date(2026, 11, 1, hour, minute, 0, 0, time.UTC)
	r.now, r.on.now = at.Unix(), at.Unix()
	return at
}

// sends takes a snapshot of all datasets and runs job j at the full hour.
func (r *hourly) sends(t *testing.T, hour int) {
	t.Helper()
	r.clock(hour, 0)
	r.takeAll(fmt.Sprint("s", hour))
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
}

// relays runs the relay at 20 minutes past the hour.
func (r *hourly) relays(t *testing.T, hour int) {
	t.Helper()
	r.clock(hour, 20)
	run, _ := r.on.run(t)
	require.NotContains(t, []string{outcome.Failed, outcome.Refused}, run.Outcome, run.FirstError())
}

// at returns the status of the relay at a time.
func (r *hourly) at(hour, minute int) *status.JobStatus {
	return status.Of([]*replicate.Job{r.on.job}, r.on.dir, r.clock(hour, minute), nil).Jobs[0]
}

// lateDatasets returns the late datasets of a status.
func lateDatasets(js *status.JobStatus) (names []string) {
	for _, d := range js.Datasets {
		if d.Late {
			names = append(names, d.Source)
		}
	}
	return names
}

// TestRelayWithoutNews stops job j. It expects that one run of the relay without new snapshots is
// tolerated, that the relay is late after the second one, and that it recovers.
func TestRelayWithoutNews(t *testing.T) {
	t.Parallel()
	r := newHourly(t)
	r.sends(t, 8)
	r.relays(t, 8)
	r.sends(t, 9)
	r.relays(t, 9)
	r.relays(t, 10)
	require.Equal(t, status.OK, r.at(10, 40).State, "job j takes longer than usual")
	r.relays(t, 11)
	js := r.at(11, 35)
	require.Equal(t, status.OK, js.State)
	require.Equal(t, r.clock(11, 35), js.Datasets[0].LateAfter.UTC())
	js = r.at(11, 36)
	require.Equal(t, []any{status.Late, true, false, 16 * 60.0}, []any{js.State, js.Late, js.Failed, js.Lag})
	require.Equal(t, []string{"dst/copy", "dst/copy/a"}, lateDatasets(js))
	require.Len(t, js.Problems, 1)
	require.Equal(t, "j:t has confirmed no new snapshot since "+r.clock(9, 20).Local().Format(time.DateTime), js.Problems[0].Error)
	require.Equal(t, []string{"dst/copy", "dst/copy/a"}, js.Problems[0].Datasets)
	require.Contains(t, js.Problems[0].Hint, "on the host of job j: zxfer replicate status j\n")
	require.Greater(t, r.at(12, 36).Lag, r.at(12, 36).LagCritical, "two more runs were missed")

	text, err := status.Metrics(&replicate.File{Jobs: []replicate.Job{*r.on.job}}, r.on.dir, r.clock(11, 36))
	require.NoError(t, err)
	require.Contains(t, string(text), fmt.Sprintf(`late_after_seconds{job="relay",source="dst/copy",target="c"} %d`, r.clock(11, 35).Unix()))

	r.sends(t, 12)
	r.relays(t, 12)
	js = r.at(13, 30)
	require.Equal(t, status.OK, js.State, js.Problems)
	require.Empty(t, js.Problems)
}

// TestRelayOfUnconfirmed makes job j stop confirming: without holds on the target, or under another name.
func TestRelayOfUnconfirmed(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, r *hourly){
		"holds":   func(_ *testing.T, r *hourly) { r.job.Holds = "source" },
		"renamed": func(_ *testing.T, r *hourly) { r.job.Name = "other" },
		"target":  func(_ *testing.T, r *hourly) { r.job.Targets[0].Name = "u" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newHourly(t)
			r.sends(t, 8)
			r.relays(t, 8)
			change(t, r)
			for hour := 9; hour < 12; hour++ {
				r.sends(t, hour)
				r.relays(t, hour)
				require.Equal(t, []string{"s8"}, r.names("far/copy"))
			}
			js := r.at(11, 40)
			require.Equal(t, status.Late, js.State)
			require.Len(t, js.Problems, 1)
			require.Contains(t, js.Problems[0].Error, ", but ")
			require.Contains(t, js.Problems[0].Hint, `holds = "both"`)
			for line := range strings.Lines(js.Problems[0].Hint) {
				require.LessOrEqual(t, len(line), 100)
			}
		})
	}
}

// TestRelayOfUnchangedDatasets expects that a dataset without new snapshots is not late while another one
// of the tree gets some, but that a dataset with unconfirmed snapshots is.
func TestRelayOfUnchangedDatasets(t *testing.T) {
	t.Parallel()
	r := newHourly(t)
	r.sends(t, 8)
	r.relays(t, 8)
	one := func(hour int) {
		r.clock(hour, 0)
		r.snapshot("src/a", fmt.Sprint("s", hour))
		r.run(t)
		r.relays(t, hour)
	}
	for hour := 9; hour < 14; hour++ {
		one(hour)
		require.Equal(t, status.OK, r.at(hour, 50).State)
	}
	r.snapshot("dst/copy", "forged")
	for hour := 14; hour < 17; hour++ {
		one(hour)
	}
	js := r.at(16, 50)
	require.Equal(t, []string{"dst/copy"}, lateDatasets(js), "its snapshot is not from job j")
	require.Equal(t, []string{"dst/copy"}, js.Problems[0].Datasets)
	require.Contains(t, js.Problems[0].Error, ", but 1 arrived")
}

// TestRelayLimit expects that snapshots.late replaces the schedule, in both directions, and also applies
// without a schedule.
func TestRelayLimit(t *testing.T) {
	t.Parallel()
	r := newHourly(t)
	r.sends(t, 8)
	r.relays(t, 8)
	for hour := 9; hour < 13; hour++ {
		r.relays(t, hour)
	}
	for _, c := range []struct {
		schedule string
		limit    time.Duration
		late     bool
	}{{"*:20", 26 * time.Hour, false}, {"*:20", 4 * time.Hour, true}, {"", 4 * time.Hour, true}, {"", 26 * time.Hour, false}, {"", 0, false}, {"daily", 4 * time.Hour, true}} {
		r.on.job.Schedule, r.on.job.Snapshots.Late = c.schedule, calendar.Duration(c.limit)
		js := r.at(12, 30)
		require.Equal(t, c.late, js.Late, c)
		require.Equal(t, c.late, len(js.Problems) > 0, c)
	}
}

// TestRelayBecomesSource makes the source of a relay the source of all copies. It expects that the relay sends
// all snapshots, and is late if there are no new ones.
func TestRelayBecomesSource(t *testing.T) {
	t.Parallel()
	r := newHourly(t)
	r.sends(t, 8)
	r.relays(t, 8)
	r.Set("dst/copy", zfs.RoleProperty, zfs.Role{Kind: zfs.RoleSource, ID: "0123456789abcdef", Job: "j", Target: "t", Since: time.Unix(r.now, 0)}.String())
	r.relays(t, 9)
	require.Equal(t, status.OK, r.at(9, 40).State)
	for hour := 10; hour < 13; hour++ {
		r.relays(t, hour)
	}
	js := r.at(12, 50)
	require.Equal(t, []string{"dst/copy", "dst/copy/a"}, lateDatasets(js))
	require.Len(t, js.Problems, 1)
	since := time.Date(2026, 11, 1, 8, 20, 0, 0, time.UTC).Local().Format(time.DateTime)
	require.Equal(t, "no snapshot was taken since "+since+": a fail over made it the source", js.Problems[0].Error)
	require.Equal(t, "replace snapshots.received_from of job relay with snapshots.take", js.Problems[0].Hint)
	r.snapshot("dst/copy/a", "own") // while dst/copy is unchanged
	r.relays(t, 13)
	require.Equal(t, []string{"s8", "own"}, r.names("far/copy/a"))
	require.Equal(t, status.OK, r.at(13, 40).State)
}

// TestRelayNeverConfirmed expects that a dataset which no job confirms, and which therefore is never sent, is late.
func TestRelayNeverConfirmed(t *testing.T) {
	t.Parallel()
	r := newHourly(t)
	r.sends(t, 8)
	r.relays(t, 8)
	r.Create("dst/copy/x", nil)
	r.snapshot("dst/copy/x", "own")
	r.sends(t, 9)
	r.relays(t, 9)
	require.Equal(t, status.OK, r.at(9, 40).State)
	r.sends(t, 10)
	r.relays(t, 10)
	js := r.at(10, 40)
	require.Equal(t, status.Late, js.State)
	require.Equal(t, []string{"dst/copy/x"}, lateDatasets(js))
	require.NoError(t, r.Hold(t.Context(), "zxfer:j:t", []string{"dst/copy/x@own"}))
	r.relays(t, 11)
	require.Contains(t, r.names("far/copy/x"), "own")
	require.Equal(t, status.OK, r.at(11, 30).State)
}

// TestReceivedClock expects that a record in the future, of a clock that was wrong, is replaced.
func TestReceivedClock(t *testing.T) {
	t.Parallel()
	r := newHourly(t)
	r.sends(t, 8)
	r.relays(t, 22)
	for hour := 9; hour < 12; hour++ {
		r.relays(t, hour)
	}
	require.Equal(t, []string{"dst/copy", "dst/copy/a"}, lateDatasets(r.at(11, 40)))
	st, err := statedir.Peek(r.on.dir, "relay").State()
	require.NoError(t, err)
	require.Equal(t, r.clock(9, 20).Unix(), st.Datasets["dst/copy"].Received.Since.Unix())
}

// TestHoldsOfRelays expects that holds --gc of each host keeps the holds of the other host's job, also without
// retention.
func TestHoldsOfRelays(t *testing.T) {
	t.Parallel()
	r := newHourly(t)
	r.job.Targets[0].Retention = nil
	require.NoError(t, jobfile.Validate(&replicate.File{Jobs: []replicate.Job{*r.job}}))
	for hour := 8; hour < 10; hour++ {
		r.sends(t, hour)
		r.relays(t, hour)
	}
	before := r.state()
	for _, on := range []*replica{r.replica, r.on} {
		held, err := on.gc(t)
		require.NoError(t, err)
		require.NotEmpty(t, held)
		for _, h := range held {
			require.False(t, h.Stale, h)
		}
	}
	require.Equal(t, before, r.state())
}
