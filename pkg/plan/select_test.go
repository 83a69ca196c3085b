package plan

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// A request lists every snapshot of its stream and is limited, so a long
// history is sent in several consecutive streams.
func TestALongHistoryGoesInSeveralStreams(t *testing.T) {
	t.Parallel()
	d := &zfs.Dataset{Name: "tank/a"}
	for i := range 25_000 {
		d.Versions = append(d.Versions, zfs.Version{Kind: zfs.Snapshot, Name: fmt.Sprint("s", i), GUID: uint64(i + 1), CreateTXG: uint64(i + 1)})
	}
	last := d.Versions[len(d.Versions)-1]
	all := (&Request{}).segments(d, 0, last, true)
	require.Len(t, all, 4, "the first alone, then 24,999")
	carried := 0
	for _, r := range all {
		require.LessOrEqual(t, len(r.through), maxThrough)
		carried += len(r.through) + 1
	}
	require.Equal(t, len(d.Versions), carried)
	require.Equal(t, last, all[3].to)
}
