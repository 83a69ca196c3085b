package importer

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/calendar"
)

func TestEvery(t *testing.T) {
	t.Parallel()
	tests := []struct {
		d     time.Duration
		spec  string
		exact bool
	}{
		{10 * time.Minute, "*:0/10", true}, {15 * time.Minute, "*:0/15", true}, {25 * time.Minute, "*:0/20", false},
		{time.Hour, "hourly", true}, {90 * time.Minute, "hourly", false}, {6 * time.Hour, "0/6:00", true}, {5 * time.Hour, "0/4:00", false},
		{day, "daily", true}, {3 * day, "daily", false}, {7 * day, "weekly", true}, {30 * day, "weekly", false},
		{30 * time.Second, "*:*:0/30", true}, {time.Millisecond, "*:*:*", false},
	}
	for _, tt := range tests {
		spec, exact := every(tt.d)
		require.Equal(t, tt.spec, spec, tt.d)
		require.Equal(t, tt.exact, exact, tt.d)
		e, err := calendar.Parse(spec)
		require.NoError(t, err)
		// Never less often than asked for.
		at := time.Date(2026, 3, 3, 3, 3, 3, 0, time.UTC)
		first, _ := e.Next(at)
		second, _ := e.Next(first)
		require.LessOrEqual(t, second.Sub(first), max(tt.d, time.Second), spec)
	}
}

func TestCron(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"0 * * * *":           "*-*-* *:00:00",
		"*/15 * * * *":        "*-*-* *:0/15:00",
		"5,35 8-18 * * 1-5":   "Mon,Tue,Wed,Thu,Fri *-*-* 8..18:05,35:00",
		"30 2 */2 jan,7 *":    "*-01,07-1/2 02:30:00",
		"0 0 * * sun":         "Sun *-*-* 00:00:00",
		"0 0 * * 5-7":         "Fri,Sat,Sun *-*-* 00:00:00",
		"*/10 * * * * *":      "*-*-* *:*:0/10",
		"0 10-20/2 1 * *":     "*-*-01 10..20/2:00:00",
		"59 23 31 12 *":       "*-12-31 23:59:00",
		"0 */1 * * */2":       "Sun,Tue,Thu,Sat *-*-* *:00:00",
		"15 4 1-7 feb-apr ?":  "*-2..4-1..7 04:15:00",
		"0 0 1 1 *":           "*-01-01 00:00:00",
		"0 12 * * Mon,wed,fr": "",
		"0 0 1 * 1":           "",
		"60 * * * *":          "",
		"a b c d e":           "",
		"* * *":               "",
		"0 0 * * 5-1":         "",
	} {
		got, err := cron(strings.Fields(line))
		if want == "" {
			require.Error(t, err, line)
			continue
		}
		require.NoError(t, err, line)
		require.Equal(t, want, got, line)
	}
}
