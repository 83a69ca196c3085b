package way

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBandwidthAt(t *testing.T) {
	t.Parallel()
	w := &Way{Bandwidth: 100, Hours: []Hours{{From: 8 * 60, To: 18 * 60, Bandwidth: 5}, {From: 22 * 60, To: 6 * 60, Bandwidth: 0}}}
	for clock, want := range map[string]int64{"07:59": 100, "08:00": 5, "17:59": 5, "18:00": 100, "22:00": 0, "05:59": 0, "06:00": 100} {
		at, err := time.Parse("15:04", clock)
		require.NoError(t, err)
		require.Equal(t, want, w.BandwidthAt(at), clock)
	}
}

func TestPorts(t *testing.T) {
	t.Parallel()
	var p Ports
	require.Empty(t, p.String())
	require.NoError(t, p.UnmarshalText([]byte("9000-9010")))
	require.Equal(t, "9000-9010", p.String())
	require.NoError(t, p.UnmarshalText([]byte("22")))
	require.Equal(t, Ports{22, 22}, p)
	require.Equal(t, "22", p.String())
	for _, s := range []string{"", "-", "1-", "-1", "0", "0-5", "1-65536", "2-1", "a-b"} {
		require.Error(t, p.UnmarshalText([]byte(s)), "%q", s)
	}
	require.Equal(t, Ports{22, 22}, p, "a wrong value changes nothing")
}
