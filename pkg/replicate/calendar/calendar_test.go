package calendar

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func at(t *testing.T, s string) time.Time {
	t.Helper()
	v, err := time.Parse("2006-01-02 15:04:05", s)
	require.NoError(t, err)
	return v
}

func TestNext(t *testing.T) {
	t.Parallel()
	tests := []struct{ spec, after, want string }{
		{"hourly", "2026-11-21 08:00:00", "2026-11-21 09:00:00"},
		{"hourly", "2026-11-21 08:59:59", "2026-11-21 09:00:00"},
		{"daily", "2026-12-31 00:00:00", "2027-01-01 00:00:00"},
		{"weekly", "2026-11-21 08:00:00", "2026-11-23 00:00:00"},
		{"quarterly", "2026-11-21 08:00:00", "2027-01-01 00:00:00"},
		{"*:0/15", "2026-11-21 08:16:00", "2026-11-21 08:30:00"},
		{"Mon..Fri 06:30", "2026-11-20 06:30:00", "2026-11-23 06:30:00"},
		{"Sat,Sun *-*-* 01,13:05:10", "2026-11-21 01:05:10", "2026-11-21 13:05:10"},
		{"*-02-29 00:00", "2026-11-21 00:00:00", "2028-02-29 00:00:00"},
		{"*-*~01 23:00", "2026-11-21 00:00:00", "2026-11-30 23:00:00"},
		{"Mon *-05~07/1", "2026-11-21 00:00:00", "2027-05-31 00:00:00"},
		{"12-24 18:00", "2026-12-24 18:00:00", "2027-12-24 18:00:00"},
		{"2030-01-01", "2026-01-01 00:00:00", "2030-01-01 00:00:00"},
		{"*-*-1..7/3 04:00", "2026-11-02 00:00:00", "2026-11-04 04:00:00"},
		{"*-*-* 3:00 UTC", "2026-11-21 08:00:00", "2026-11-22 03:00:00"},
		{"2020-01-01", "2026-01-01 00:00:00", ""},
	}
	for _, tt := range tests {
		t.Run(tt.spec+" after "+tt.after, func(t *testing.T) {
			t.Parallel()
			e, err := Parse(tt.spec)
			require.NoError(t, err)
			got, ok := e.Next(at(t, tt.after))
			if tt.want == "" {
				require.False(t, ok)
				return
			}
			require.True(t, ok)
			require.Equal(t, at(t, tt.want), got)
		})
	}
}

// TestNextAfterYearOne expects that the search for an event after a time of long ago, which the record of another user
// may have, starts in the first year of events.
func TestNextAfterYearOne(t *testing.T) {
	t.Parallel()
	start := time.Date(firstYear, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, year := range []int{-1, 1, firstYear - 1} {
		require.Equal(t, start, firstDate(time.Date(year, 12, 31, 23, 0, 0, 0, time.UTC)), year)
	}
	require.Equal(t, start.AddDate(0, 0, 1), firstDate(time.Date(firstYear, 1, 2, 0, 0, 0, 0, time.UTC)))
	e, err := Parse("hourly")
	require.NoError(t, err)
	at, ok := e.Next(time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC))
	require.True(t, ok)
	require.Equal(t, time.Date(firstYear, 1, 1, 0, 0, 0, 0, time.UTC), at)
}

// TestNextSummerTime expects that an hour that does not exist is skipped. An hour that occurs twice
// counts once.
func TestNextSummerTime(t *testing.T) {
	t.Parallel()
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skipf("no time zones here: %v", err)
	}
	e, err := Parse("*-*-* 02:30")
	require.NoError(t, err)
	got, ok := e.Next(time.Date(2026, 3, 28, 12, 0, 0, 0, zone)) // clocks go from 2 to 3 on the 29th
	require.True(t, ok)
	require.Equal(t, time.Date(2026, 3, 30, 2, 30, 0, 0, zone), got)
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "sometimes", "25:00", "*:60", "Mon..Funday", "Fri..Mon", "*-13-01", "*-*-32", "*:0/0", "1..", "10:00 11:00", "*-*-* 00:00 Mars/Olympus", "00:00:00.5",
		"Mon\n06:30", "hourly\n", "Mon\u008506:30", "Mon\u00a006:30", "Mon\v06:30", "daily\x00"} {
		_, err := Parse(s)
		require.Error(t, err, "%q", s)
	}
}

func TestCron(t *testing.T) {
	t.Parallel()
	tests := []struct{ spec, want string }{
		{"hourly", "0 * * * *"},
		{"*:0/15", "*/15 * * * *"},
		{"daily", "0 0 * * *"},
		{"weekly", "0 0 * * 1"},
		{"Sat,Sun 03:30", "30 3 * * 0,6"},
		{"monthly", "0 0 1 * *"},
		{"*-01,04,07,10-01 05:00", "0 5 1 */3 *"},
		{"Mon *-*-1..7 00:00", ""},
		{"*:*:30", ""},
		{"2030-01-01", ""},
		{"*-*~1", ""},
		{"03:00 UTC", ""},
	}
	for _, tt := range tests {
		t.Run(tt.spec, func(t *testing.T) {
			t.Parallel()
			e, err := Parse(tt.spec)
			require.NoError(t, err)
			got, err := e.Cron()
			require.Equal(t, tt.want == "", err != nil, "%v", err)
			require.Equal(t, tt.want, got)
		})
	}
}

// TestNextAgainstSystemd expects Next to agree with systemd-analyze.
func TestNextAgainstSystemd(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	base := time.Date(2026, 2, 27, 13, 37, 11, 0, time.UTC)
	for _, spec := range []string{
		"minutely", "hourly", "daily", "weekly", "monthly", "quarterly", "semiannually", "yearly",
		"*:0/7", "*:5/20", "Mon..Fri 06:30", "Sat,Sun 01,13:05:10", "*-*~01 23:00", "Mon *-05~07/1", "*-02~3 04:00",
		"12-24 18:00", "*-*-1..7/3 04:00", "*-2..4-* 0..6/2:15", "2028-*-29", "*:*:20/15", "Tue *-*-* 00:00:00",
		"*-*-10/9 00:00", "2026/2-03-01 00:00", "*-*~10/4 01:00",
	} {
		out, err := exec.Command("systemd-analyze", "calendar", "--iterations=4", "--base-time="+base.Format("2006-01-02 15:04:05 MST"), spec+" UTC").CombinedOutput()
		require.NoError(t, err, "%s\n%s", spec, out)
		e, err := Parse(spec + " UTC")
		require.NoError(t, err, spec)
		now := base
		for l := range strings.Lines(string(out)) {
			label, value, _ := strings.Cut(strings.TrimSpace(l), ": ")
			if label != "Next elapse" && !strings.HasPrefix(label, "Iter") {
				continue
			}
			want, err := time.Parse("Mon 2006-01-02 15:04:05 MST", value)
			require.NoError(t, err, "%s: %q", spec, l)
			got, ok := e.Next(now)
			require.True(t, ok, spec)
			require.Equal(t, want.UTC(), got.UTC(), spec)
			now = got
		}
		require.True(t, now.After(base), "systemd-analyze printed nothing about %s:\n%s", spec, out)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"hourly", "Mon..Fri *-*-1..7/2 *:0/15:00 UTC", "*-*~3", "2030-01-01", "12-24 18:00", "~", "-", "a:", "0/0:0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := Parse(s)
		if err != nil {
			return
		}
		base := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
		if next, ok := e.Next(base); ok {
			require.True(t, next.After(base))
		}
	})
}
