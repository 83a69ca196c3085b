package runner

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// TestPromoteDescendantWithSystemMountpoint expects that a recorded mountpoint of a descendant that
// is refused does not prevent a promotion for which the user chooses the mountpoint.
func TestPromoteDescendantWithSystemMountpoint(t *testing.T) {
	t.Parallel()
	for mountpoint, want := range map[string][]string{
		"":     nil, // refused
		"none": {"none", "none", "noauto"},
		"/new": {"/new", "", "on"},
	} {
		p := newRolePair(t)
		p.Set("src/a/c", "mountpoint", "/home")
		require.NoError(t, p.runJob(t, "home"))
		p.Set("dst/copy/a/c", "mountpoint", "none")
		f, err := p.doPromote(t, FailoverOptions{Mountpoint: mountpoint, SourceAlive: true})
		if want == nil {
			require.Equal(t, fault.Refused, fault.ClassOf(err))
			require.ErrorContains(t, err, "/home is a directory of the system")
			continue
		}
		require.NoError(t, err, mountpoint)
		require.Equal(t, want[0], p.Get("dst/copy/a", "mountpoint"))
		require.NotEqual(t, "/home", p.Get("dst/copy/a/c", "mountpoint"))
		require.Equal(t, want[2], p.Get("dst/copy/a/c", "canmount"))
		if mountpoint == "/new" {
			require.Contains(t, strings.Join(f.Notes, "\n"), "the recorded mountpoint is not used")
		}
	}
}

// TestHostileMountpointOfUnmountedDataset expects that a record is checked even if the dataset is not
// mounted now.
func TestHostileMountpointOfUnmountedDataset(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	p.Set("dst/copy/a/c", zfs.OriginProperty, `{"set":{"mountpoint":"/etc","canmount":"noauto"}}`)
	state := p.state()
	_, err := p.doPromote(t, FailoverOptions{SourceAlive: true})
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorContains(t, err, "/etc is a directory of the system")
	require.Equal(t, state, p.state())
}
