package importer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/calendar"
)

func TestEvery(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		30 * time.Second: "*:*:0/30", 10 * time.Minute: "*:0/10", 15 * time.Minute: "*:0/15", time.Hour: "hourly", 6 * time.Hour: "0/6:00", day: "daily", 7 * day: "weekly",
		time.Millisecond: "", 1500 * time.Millisecond: "", 25 * time.Minute: "", 90 * time.Minute: "", 5 * time.Hour: "", 3 * day: "", 30 * day: "",
	} {
		spec, ok := intervalEvent(d)
		require.Equal(t, want, spec, d)
		require.Equal(t, want != "", ok, d)
		if !ok {
			continue
		}
		e, err := calendar.Parse(spec)
		require.NoError(t, err)
		at := time.Date(2026, 3, 3, 3, 3, 3, 0, time.UTC)
		first, _ := e.Next(at)
		second, _ := e.Next(first)
		require.Equal(t, d, second.Sub(first), spec)
	}
}

func TestCron(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"0 * * * *":           "*-*-* *:0:00",
		"*/15 * * * *":        "*-*-* *:0/15:00",
		"5,35 8-18 * * 1-5":   "Mon..Fri *-*-* 8..18:5,35:00",
		"30 2 */2 1,7 *":      "*-1,7-1/2 2:30:00",
		"0 0 * * sun":         "sun *-*-* 0:0:00",
		"0 0 * * 5-7":         "Fri..Sun *-*-* 0:0:00",
		"0 0 * * 0,3":         "Sun,Wed *-*-* 0:0:00",
		"0 10-20/2 1 * *":     "*-*-1 10..20/2:0:00",
		"59 23 31 12 *":       "*-12-31 23:59:00",
		"0 12 * * Mon,wed,fr": "",
		"0 */1 * * */2":       "",
		"0 0 1 jan *":         "",
		"0 0 1 * 1":           "",
		"60 * * * *":          "",
		"a b c d e":           "",
		"* * *":               "",
		"0 0 * * 5-1":         "",
		"*/10 * * * * *":      "",
	} {
		got, ok := cron(line)
		require.Equal(t, want, got, line)
		require.Equal(t, want != "", ok, line)
	}
}

func TestCutSchedule(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][3]string{
		"syncoid a b":                    {"", "", "syncoid a b"},
		"0 3 * * *  root syncoid a b":    {"0 3 * * *", "*-*-* 3:0:00", "root syncoid a b"},
		"@weekly syncoid a b":            {"@weekly", "Sun *-*-* 00:00:00", "syncoid a b"},
		"@reboot syncoid a b":            {"@reboot", "", "syncoid a b"},
		"0 3 1 * 1 syncoid 'a  x' b":     {"0 3 1 * 1", "", "syncoid 'a  x' b"},
		"/usr/sbin/syncoid -r a b c d e": {"", "", "/usr/sbin/syncoid -r a b c d e"},
	} {
		times, spec, rest, ok := cutSchedule(line)
		require.Equal(t, want, [3]string{times, spec, rest}, line)
		require.Equal(t, times == "" || spec != "", ok, line)
	}
}
