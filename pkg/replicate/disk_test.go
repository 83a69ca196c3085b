package replicate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/decide"
)

func TestDiskState(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC)
	s, target := &State{}, &Target{Name: "offsite-blue", To: "offsite/home", Disk: &Disk{Pools: map[string]string{"blue": "1"}, Label: "blue"}}
	d := s.Disk(target, now)
	require.Equal(t, decide.DiskAway, d.State)
	require.NoError(t, d.Next(decide.SeenAttached, now.Add(time.Hour)))
	require.NoError(t, d.Next(decide.SeenAttached, now.Add(2*time.Hour)))
	require.Equal(t, now.Add(time.Hour), d.Since, "the first run that saw it")
	require.Error(t, d.Next(decide.DiskScrub, now))
	require.Same(t, d, s.Disk(target, now))
	target.Disk.Pools["blue"] = "7"
	require.NotSame(t, d, s.Disk(target, now), "another disk")

	d.Scrubbed = now
	for _, c := range []struct {
		every    calendar.Duration
		at       time.Time
		state    decide.DiskState
		scrubbed time.Time
		due      bool
	}{
		{0, now.AddDate(9, 0, 0), decide.DiskImported, now, false},
		{calendar.Duration(day), now.Add(day - 1), decide.DiskImported, now, false},
		{calendar.Duration(day), now.Add(day), decide.DiskImported, now, true},
		{calendar.Duration(day), now.Add(1), decide.DiskScrubbing, now, true},
		{calendar.Duration(day), now, decide.DiskImported, time.Time{}, true},
		{calendar.Duration(day), now, decide.DiskImported, now.Add(1), true}, // the clock was wrong
	} {
		d.State, d.Scrubbed = c.state, c.scrubbed
		require.Equal(t, c.due, d.ScrubDue(c.every, c.at), "%+v", c)
	}
	require.True(t, d.LateAfter(0, now, now).IsZero())
	require.Equal(t, now.Add(day), d.LateAfter(calendar.Duration(day), now, now))
	require.Equal(t, d.First.Add(day), d.LateAfter(calendar.Duration(day), time.Time{}, now))
	require.Equal(t, d.First.Add(day), d.LateAfter(calendar.Duration(day), now.Add(1), now), "the clock was wrong")
}
