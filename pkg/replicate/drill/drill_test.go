package drill

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
)

// TestLimit expects that a drill with a schedule ends when it becomes late.
func TestLimit(t *testing.T) {
	t.Parallel()
	hour := calendar.Duration(time.Hour)
	for name, c := range map[string]struct {
		drill *replicate.Drill
		want  time.Duration
	}{
		"no table":                {nil, 0},
		"by hand":                 {&replicate.Drill{}, 0},
		"by hand with a deadline": {&replicate.Drill{Deadline: hour}, time.Hour},
		"a schedule":              {&replicate.Drill{Schedule: "*-*-* 00:00:00 UTC"}, 40 * time.Hour},
		"both":                    {&replicate.Drill{Schedule: "daily", Deadline: hour}, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC)
			require.Equal(t, c.want, limitOf(&replicate.Job{Drill: c.drill}, now))
		})
	}
}
