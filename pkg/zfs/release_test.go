package zfs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLacks expects that a branch without its own fix has it only if it is newer than all fixed
// ones.
func TestLacks(t *testing.T) {
	t.Parallel()
	fixes := []Release{{2, 1, 14}, {2, 3, 2}}
	for v, want := range map[Release]bool{
		{2, 0, 7}: true, {2, 1, 13}: true, {2, 1, 14}: false, {2, 2, 10}: true, {2, 3, 1}: true, {2, 3, 2}: false, {2, 4, 0}: false,
	} {
		require.Equal(t, want, v.Lacks(fixes), v)
	}
	require.True(t, Release{9, 9, 9}.Lacks(nil), "in no release yet")
}

func TestParseRelease(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]Release{
		"2.3.9-1": {2, 3, 9}, "2.3.9": {2, 3, 9}, "zfs-2.1.11-1+deb12u1": {2, 1, 11}, "2.4": {2, 4, 0}, "2.2.0-rc4": {2, 2, 0}, "0.8.6-1ubuntu4": {0, 8, 6},
	} {
		v, ok := ParseRelease(s)
		require.True(t, ok, s)
		require.Equal(t, want, v, s)
	}
	for _, s := range []string{"", "2", "git", "2.x", "-2.3", "2.-3.1", "a.b.c"} {
		_, ok := ParseRelease(s)
		require.False(t, ok, s)
	}
}

func FuzzParseRelease(f *testing.F) {
	for _, s := range []string{"2.3.9-1", "zfs-2.1.11", "2.4", "", "9999999999999999999999.1", "2..3", "2.3.9.4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, ok := ParseRelease(s)
		if !ok {
			require.Zero(t, v)
			return
		}
		require.False(t, v.Before(v))
		again, ok := ParseRelease(v.String() + "-1")
		require.True(t, ok)
		require.Equal(t, v, again)
	})
}
