package transport

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBandwidthAt(t *testing.T) {
	t.Parallel()
	w := &Settings{Bandwidth: 100, BandwidthWindows: []BandwidthWindow{{From: 8 * 60, To: 18 * 60, Bandwidth: 5}, {From: 22 * 60, To: 6 * 60, Bandwidth: 0}}}
	for clock, want := range map[string]int64{"07:59": 100, "08:00": 5, "17:59": 5, "18:00": 100, "22:00": 0, "05:59": 0, "06:00": 100} {
		at, err := time.Parse("15:04", clock)
		require.NoError(t, err)
		require.Equal(t, want, w.BandwidthAt(at), clock)
	}
}
