package status

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/size"
	"zxfer/pkg/transport"
)

// closed returns settings with a window of the day in which no transfers start.
func closed(from, to transport.TimeOfDay) *replicate.Transfer {
	none := size.Size(0)
	return &replicate.Transfer{Settings: transport.Settings{BandwidthWindows: []transport.BandwidthWindow{{From: from, To: to, Bandwidth: &none}}}}
}

// TestStatusInPause enumerates when a job with an hourly schedule is late before, during and after
// a pause from 10:30 to 13:10.
func TestStatusInPause(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)
	at := func(clock string) time.Time {
		c, err := time.Parse("15:04", clock)
		require.NoError(t, err)
		return day.Add(time.Duration(c.Hour())*time.Hour + time.Duration(c.Minute())*time.Minute)
	}
	bounded, endless := &decide.Pause{Since: at("10:30"), Until: at("13:10")}, &decide.Pause{Since: at("10:30")}
	for _, c := range []struct {
		pause   *decide.Pause
		success string // of the last run
		now     string
		late    bool
		lag     time.Duration
		by      string // late after, "" = never
	}{
		{nil, "10:00", "13:00", true, 2 * time.Hour, "11:15"},
		{bounded, "10:00", "11:30", false, 0, "14:15"},
		{bounded, "10:00", "13:09", false, 0, "14:15"},
		{bounded, "10:00", "13:10", false, 0, "14:15"},
		{bounded, "10:00", "14:10", false, 10 * time.Minute, "14:15"},
		{bounded, "10:00", "14:16", true, 16 * time.Minute, "14:15"},
		{bounded, "14:00", "14:30", false, 0, "15:15"},
		{bounded, "07:00", "11:30", false, 0, "14:15"}, // late before the pause
		{bounded, "", "11:30", false, 0, "14:15"},      // never arrived
		{bounded, "", "14:16", true, 16 * time.Minute, "14:15"},
		{endless, "10:00", "23:00", false, 0, ""},
		{&decide.Pause{Since: at("10:30"), TransfersOnly: true}, "10:00", "23:00", false, 0, ""},
		{&decide.Pause{Since: at("10:30"), Until: at("13:00")}, "10:00", "12:00", false, 0, "13:15"}, // a run at the end is due
	} {
		a := replicate.Attempt{Tried: at("07:00")}
		if c.success != "" {
			a.Success = at(c.success)
		}
		js := statusOf(&replicate.Job{Name: "j", Schedule: "hourly"}, stateOfOne(a), statusTimes{now: at(c.now), pause: c.pause})
		js.Normalize()
		name := fmt.Sprint(c)
		require.Equal(t, c.late, js.Late, name)
		require.Equal(t, c.lag.Seconds(), js.Lag, name)
		by := ""
		if d := js.Datasets[0]; !d.LateAfter.IsZero() {
			by = d.LateAfter.Format("15:04")
		}
		require.Equal(t, c.by, by, name)
	}
	js := statusOf(&replicate.Job{Name: "j", Schedule: "hourly"}, &statedir.State{}, statusTimes{now: at("11:00"), pause: endless})
	require.Equal(t, OK, js.State, "it never ran, and is paused")
	require.False(t, js.Late)
}

// TestStatusInWindow enumerates when a job with an hourly schedule is late if a window closes from
// 08:00 to 18:00.
func TestStatusInWindow(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)
	j := &replicate.Job{Name: "j", Schedule: "hourly", Targets: []replicate.Target{{Name: "near", Transfer: closed(480, 1080)}}}
	for _, c := range []struct {
		success, now time.Duration
		late         bool
		by           time.Duration
	}{
		{6 * time.Hour, 7*time.Hour + 16*time.Minute, true, 7*time.Hour + 15*time.Minute},
		{7 * time.Hour, 8*time.Hour + 16*time.Minute, false, 18*time.Hour + 15*time.Minute},
		{7 * time.Hour, 17*time.Hour + 59*time.Minute, false, 18*time.Hour + 15*time.Minute},
		{7 * time.Hour, 18*time.Hour + 16*time.Minute, true, 18*time.Hour + 15*time.Minute},
		{18 * time.Hour, 18*time.Hour + 30*time.Minute, false, 19*time.Hour + 15*time.Minute},
	} {
		js := statusOf(j, stateOfOne(replicate.Attempt{Success: day.Add(c.success)}), statusTimes{now: day.Add(c.now)})
		js.Normalize()
		require.Equal(t, c.late, js.Late, "%v", c)
		require.Equal(t, day.Add(c.by), js.Datasets[0].LateAfter, "%v", c)
	}
	for now, late := range map[time.Duration]bool{9 * time.Hour: false, 18*time.Hour + 10*time.Minute: false, 18*time.Hour + 16*time.Minute: true} {
		a := replicate.Attempt{}
		a.Hold(day.Add(7*time.Hour + 59*time.Minute))
		a.Hold(day.Add(9 * time.Hour))
		js := statusOf(j, stateOfOne(a), statusTimes{now: day.Add(now)})
		require.Equal(t, late, js.Late, "it never arrived: %s", now)
		a.Record(day.Add(7*time.Hour+30*time.Minute), context.Canceled)
		require.True(t, statusOf(j, stateOfOne(a), statusTimes{now: day.Add(now)}).Late, "a failure counts: %s", now)
	}
	// The grace of a run at 07:50 would end in the window.
	j.Schedule = "*:50"
	js := statusOf(j, stateOfOne(replicate.Attempt{Success: day.Add(7 * time.Hour)}), statusTimes{now: day.Add(9 * time.Hour)})
	require.False(t, js.Late)
	require.Equal(t, day.Add(19*time.Hour+5*time.Minute), js.Datasets[0].LateAfter)
}
