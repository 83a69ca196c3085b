package decision

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// TestUnchangedWithinASecond expects that a listing in the second of a change, or in the next one,
// is not trusted. Another change in that second would be invisible.
func TestUnchangedWithinASecond(t *testing.T) {
	t.Parallel()
	for age, trusted := range map[int64]bool{-5: false, 0: false, 1: false, 2: true, 3: true} {
		d := &zfs.Dataset{Properties: map[string]zfs.Property{zfs.ChangedProperty: {Value: "1000"}}}
		require.Equal(t, trusted, showsChanges(d, 1000+age), age)
	}
	require.False(t, showsChanges(&zfs.Dataset{}, 1000), "unknown")
}
