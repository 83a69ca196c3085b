package calendar

import (
	"encoding"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/size"
	"zxfer/pkg/transport"
)

func TestDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"90s": 90 * time.Second, "15m": 15 * time.Minute, "7d": 168 * time.Hour, "1d12h": 36 * time.Hour} {
		var d Duration
		require.NoError(t, d.UnmarshalText([]byte(text)), text)
		require.Equal(t, Duration(want), d)
		var again Duration
		require.NoError(t, again.UnmarshalText([]byte(d.String())))
		require.Equal(t, d, again)
	}
	var d Duration
	for _, text := range []string{"", "5", "-1h", "d", "1w", "1dd", "-1d"} {
		require.Error(t, d.UnmarshalText([]byte(text)), "%q", text)
	}
}

// FuzzValues expects that a valid value is within bounds, and that formatting and parsing it
// returns the same value.
func FuzzValues(f *testing.F) {
	for _, s := range []string{"90s", "1d12h", "65535d", "65535d1000000h", "7d", "0s", "1ns", "64MiB", "1.5G/s", "22:30", "24:00", "9000", "9000-9010", "-1h", "d", "1d-1h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		again := func(v encoding.TextMarshaler, into encoding.TextUnmarshaler) {
			text, err := v.MarshalText()
			require.NoError(t, err)
			require.NoError(t, into.UnmarshalText(text), "%q was written as %q", s, text)
		}
		var d, d2 Duration
		if d.UnmarshalText([]byte(s)) == nil {
			require.GreaterOrEqual(t, d, Duration(0))
			again(d, &d2)
			require.Equal(t, d, d2)
		}
		var n, n2 size.Size
		if n.UnmarshalText([]byte(s)) == nil {
			require.GreaterOrEqual(t, n, size.Size(0))
			if n < 1<<53 {
				again(n, &n2)
				require.Equal(t, n, n2)
			}
		}
		var at, at2 transport.TimeOfDay
		if at.UnmarshalText([]byte(s)) == nil {
			require.Less(t, at, transport.TimeOfDay(24*60))
			again(at, &at2)
			require.Equal(t, at, at2)
		}
		var p, p2 transport.Ports
		if p.UnmarshalText([]byte(s)) == nil {
			require.True(t, 0 < p.Low && p.Low <= p.High && p.High < 1<<16)
			again(p, &p2)
			require.Equal(t, p, p2)
		}
	})
}
