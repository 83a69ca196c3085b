package replicate

import (
	"path"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNaming(t *testing.T) {
	t.Parallel()
	n, err := NewNaming(DefaultTemplate, "home")
	require.NoError(t, err)
	at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.FixedZone("east", 3600))
	name := n.At(at)
	require.Equal(t, "zxfer_home_2026-02-03_03:05:06", name, "in UTC")
	back, ok := n.TimeOf(name)
	require.True(t, ok)
	require.True(t, at.Equal(back))
	matched, err := path.Match(n.Pattern(), name)
	require.NoError(t, err)
	require.True(t, matched)
	for _, other := range []string{"", "zxfer_home_", "zxfer_office_2026-02-03_03:05:06", name + "x", "zxfer_home_2026-02-31_03:05:06", "zxfer_home_2026-02-03_03:05:6"} {
		_, ok := n.TimeOf(other)
		require.False(t, ok, other)
	}
}
