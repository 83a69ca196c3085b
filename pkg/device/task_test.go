package device

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/wire"
)

func TestChoose(t *testing.T) {
	t.Parallel()
	const mib, tib = 1 << 20, 1 << 40
	for name, c := range map[string]struct {
		task   Task
		block  int
		later  bool
		sparse bool
	}{
		"a disk":                   {Task{Source: Facts{Kind: KindDisk, Size: tib}}, mib, false, false},
		"more blocks than wanted":  {Task{Source: Facts{Kind: KindDisk, Size: 3 * tib}}, 4 * mib, false, false},
		"no block is larger":       {Task{Source: Facts{Kind: KindDisk, Size: 60 * tib}}, wire.MaxRaw, false, false},
		"a source with one head":   {Task{Source: Facts{Rotational: true}}, 4 * mib, false, false},
		"a target with one head":   {Task{Target: Facts{Rotational: true}}, 4 * mib, true, false},
		"what was asked for":       {Task{Source: Facts{Rotational: true}, Options: Options{Delta: true}, Sparse: true}, 4 * mib, false, true},
		"a file with holes":        {Task{Source: Facts{Kind: KindFile, Size: 100 * mib, Allocated: 80 * mib}}, mib, false, true},
		"a file with hardly any":   {Task{Source: Facts{Kind: KindFile, Size: 100 * mib, Allocated: 95 * mib}}, mib, false, false},
		"a device takes no holes":  {Task{Source: Facts{Kind: KindDisk, Size: 100 * mib}}, mib, false, false},
		"a block that was given":   {func() (t Task) { t.Options.Block = 64 << 10; return t }(), 64 << 10, false, false},
		"a stream of unknown size": {Task{Source: Facts{Kind: KindStream, Path: Standard}}, mib, false, false},
	} {
		require.NoError(t, c.task.Choose(), name)
		require.Equal(t, []any{c.block, c.later, c.sparse, c.sparse},
			[]any{c.task.Options.Block, c.task.Options.VerifyLater, c.task.Sparse, c.task.Allow.Sparse}, name)
	}
	small := Task{Source: Facts{Kind: KindDisk, Size: 60 * tib}}
	small.Options.Block = MinBlock
	require.ErrorContains(t, small.Choose(), "blocks at most")
}

// But only a volume has a snapshot.
func TestASnapshotHasNoneOfItsVolumesFlaws(t *testing.T) {
	t.Parallel()
	volume := Facts{Path: "/dev/vg/lv", Kind: KindLVM, Name: "dm-0", Size: 1, Mounts: []Mount{{Device: "dm-0", Point: "/srv", Type: "ext4"}}}
	disk := volume
	disk.Kind = KindDisk
	require.Equal(t, []string{"source-mounted"}, ids(Task{Source: volume}.CheckSource(), finding.Warn))
	require.Empty(t, Task{Source: volume, LVMSnapshot: "5G"}.CheckSource())
	require.Equal(t, []string{"source-no-lv"}, ids(Task{Source: disk, LVMSnapshot: "5G"}.CheckSource(), finding.Fail))
}

func TestDiffer(t *testing.T) {
	t.Parallel()
	parts := func(s string) (d Digest) {
		d.PartBytes = 10
		for i := range s {
			d.Parts = append(d.Parts, []byte{s[i]})
		}
		return d
	}
	require.Empty(t, parts("abc").Differ(parts("abc")))
	require.Equal(t, []Range{{10, 20}, {40, 10}}, parts("axyde").Differ(parts("abcdf")))
	require.Equal(t, []Range{{20, 20}}, parts("abcd").Differ(parts("ab")), "what only one of them has")
	require.Equal(t, []Range{{20, 10}}, parts("ab").Differ(parts("abc")))
}
