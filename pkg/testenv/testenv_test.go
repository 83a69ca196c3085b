package testenv

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSlowness(t *testing.T) {
	t.Parallel()
	require.InDelta(t, 1, slowness(""), 0)
	require.InDelta(t, 2.5, slowness("2.5"), 0)
	for _, bad := range []string{"fast", "0.5", "-1", "NaN", "+Inf", "1001"} {
		require.Panics(t, func() { slowness(bad) }, bad)
	}
}

func TestTimeoutGrowsWithSlowness(t *testing.T) {
	t.Setenv(SlownessVariable, "3")
	require.Equal(t, 6*time.Minute, Timeout())
	require.Equal(t, 3*time.Second, Scale(time.Second))
	t.Setenv(SlownessVariable, "")
	require.Equal(t, 2*time.Minute, Timeout())
}

func TestLong(t *testing.T) {
	t.Setenv(LongVariable, "")
	require.False(t, Long())
	t.Setenv(LongVariable, "1")
	require.Equal(t, !testing.Short(), Long())
}

func TestRounds(t *testing.T) {
	t.Setenv(LongVariable, "")
	want := 2
	if testing.Short() {
		want = 1
	}
	require.Equal(t, want, Rounds(1, 2, 3))
	t.Setenv(LongVariable, "1")
	if !testing.Short() {
		want = 3
	}
	require.Equal(t, want, Rounds(1, 2, 3))
}
