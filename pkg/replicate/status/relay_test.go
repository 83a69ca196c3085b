package status

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
)

// TestReceivedStatus covers records that no run in these tests writes.
func TestReceivedStatus(t *testing.T) {
	t.Parallel()
	at := func(hour int) time.Time { return time.Date(2026, 11, 21, hour, 0, 0, 0, time.UTC) }
	day := decide.Pause{Since: at(9), Until: at(20)}
	for name, c := range map[string]struct {
		received time.Time
		pause    *decide.Pause
		now      time.Time
		late     bool
	}{
		"record of an older version": {time.Time{}, nil, at(21), false},
		"silent":                     {at(8), nil, at(21), true},
		"the clock was years ahead":  {at(8).AddDate(4, 0, 0), nil, at(21), false},
		"paused":                     {at(8), &day, at(19), false},
		"after a pause":              {at(8), &day, at(21), false},
		"long after a pause":         {at(8), &day, at(22), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := stateOfOne(replicate.Attempt{Success: c.now.Add(-time.Minute)})
			st.Dataset("tank/a").Received = &replicate.Received{Since: c.received, State: decide.ReceivedNothing}
			j := &replicate.Job{Name: "j", Schedule: "hourly", Snapshots: replicate.Snapshots{ReceivedFrom: "home:b"}}
			js := statusOf(j, st, statusTimes{now: c.now, pause: c.pause})
			require.Equal(t, c.late, js.Late)
			j.Snapshots.ReceivedFrom = ""
			require.False(t, statusOf(j, st, statusTimes{now: c.now, pause: c.pause}).Late, "the job is no relay any more")
		})
	}
}
