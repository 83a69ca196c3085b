package replicate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
)

func TestParseTime(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	now := time.Date(2026, 11, 26, 9, 30, 15, 0, berlin)
	for text, want := range map[string]string{
		"2026-11-27 06:00":          "2026-11-27T06:00:00+01:00",
		"2026-11-27 06:00:30":       "2026-11-27T06:00:30+01:00",
		"06:00":                     "2026-11-27T06:00:00+01:00",
		"09:30":                     "2026-11-27T09:30:00+01:00",
		"09:31":                     "2026-11-26T09:31:00+01:00",
		"2026-07-01 06:00":          "2026-07-01T06:00:00+02:00",
		"2026-11-27T06:00:00Z":      "2026-11-27T07:00:00+01:00",
		"2026-11-27T06:00:00-08:00": "2026-11-27T15:00:00+01:00",
		"1999-01-01 00:00":          "1999-01-01T00:00:00+01:00", // package decide refuses it
	} {
		at, err := ParseTime(text, now)
		require.NoError(t, err)
		require.Equal(t, want, at.In(berlin).Format(time.RFC3339), text)
	}
	for _, text := range []string{"", "now", "8h", "25:00", "06:00 ", "2026-13-01 06:00", "2026-11-27", "\x1b[2J", "99999-01-01T00:00:00Z", "6", "0001-01-01 00:00", "0001-01-01T00:00:00Z"} {
		_, err := ParseTime(text, now)
		require.Equal(t, fault.Usage, fault.ClassOf(err), "%q", text)
		require.NotEmpty(t, fault.HintOf(err))
	}
	skipped, err := ParseTime("02:30", time.Date(2026, 3, 28, 12, 0, 0, 0, berlin))
	require.NoError(t, err)
	require.Equal(t, "2026-03-30T02:30:00+02:00", skipped.Format(time.RFC3339), "the clock skips it on March 29")
}
