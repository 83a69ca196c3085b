package preflight

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/remedy"
	"zxfer/pkg/sysinfo"
)

// TestHiddenMountsHaveOneHint expects one command that unmounts each later mount once, the last one first.
func TestHiddenMountsHaveOneHint(t *testing.T) {
	t.Parallel()
	found := mounts(&sysinfo.System{Mounts: []sysinfo.Mount{
		{Device: "tank", Point: "/tank", Type: "zfs"}, {Device: "tank/a", Point: "/tank/a", Type: "zfs"}, {Device: "tank/b", Point: "/b", Type: "zfs"},
		{Device: "tmpfs", Point: "/tank", Type: "tmpfs"}, {Device: "tmpfs", Point: "/b", Type: "tmpfs"},
	}})
	require.Len(t, found, 3)
	require.Empty(t, found[0].Remedy+found[1].Remedy)
	require.Equal(t, "umount /b /tank\nor change the mountpoints", remedy.Here(found[2].Remedy))
}
