package files

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestReadBlockSizes expects the sums of all regular files, the files of requested buckets once each, and
// the paths of requested inodes. Links are not followed.
func TestReadBlockSizes(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	require.NoError(t, os.Mkdir(dir+"/d", 0o700))
	for name, size := range map[string]int64{"empty": 0, "d/small": 10, "d/large": 1 << 20} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), make([]byte, min(size, 10)), 0o600))
		require.NoError(t, os.Truncate(filepath.Join(dir, name), size))
	}
	require.NoError(t, os.Link(dir+"/d/small", dir+"/d/hard"))
	require.NoError(t, os.WriteFile(other+"/outside", nil, 0o600))
	require.NoError(t, os.Symlink(other, dir+"/link"))
	root, err := os.Open(dir)
	require.NoError(t, err)
	defer root.Close()
	read := func(q BlockQuery) BlockSizes {
		t.Helper()
		s, err := ReadBlockSizes(t.Context(), root, q, nil)
		require.NoError(t, err)
		require.NoError(t, s.Check(q))
		return s
	}
	q := BlockQuery{Snapshot: "tank/a@x", Seed: 7}
	before := read(q)
	require.EqualValues(t, 4, before.Files)
	again := read(q)
	require.Empty(t, before.DifferentBuckets(&again))
	require.NoError(t, os.WriteFile(dir+"/new", nil, 0o600))
	after := read(q)
	changed := before.DifferentBuckets(&after)
	require.Len(t, changed, 1)

	var st unix.Stat_t
	require.NoError(t, unix.Stat(dir+"/new", &st))
	q.Buckets = changed
	s := read(q)
	require.Contains(t, s.Listed(), st.Ino)
	require.Equal(t, uint64(st.Blksize), s.Listed()[st.Ino].Block)
	q.Buckets = nil
	for i := range BlockBuckets {
		q.Buckets = append(q.Buckets, uint16(i))
	}
	s = read(q)
	require.Len(t, s.Listed(), 4, "a hard link counts once")
	require.NoError(t, unix.Stat(dir+"/d/large", &st))
	require.EqualValues(t, 1<<20, s.Listed()[st.Ino].Size)
	require.True(t, s.Listed()[st.Ino].OneBlock, "it has no data behind the first block")

	paths := read(BlockQuery{Snapshot: "tank/a@x", Inodes: []uint64{st.Ino, 1 << 60}}).Paths
	require.Equal(t, []InodePath{{st.Ino, "d/large"}}, paths)
}

// TestBlockQueryLimits expects bounded queries and answers.
func TestBlockQueryLimits(t *testing.T) {
	t.Parallel()
	for name, q := range map[string]BlockQuery{
		"bucket":          {Buckets: []uint16{BlockBuckets}},
		"buckets":         {Buckets: make([]uint16, BlockBuckets+1)},
		"inodes":          {Inodes: make([]uint64, MaxBlockInodes+1)},
		"buckets, inodes": {Buckets: []uint16{1}, Inodes: []uint64{1}},
	} {
		require.Error(t, q.Check(), name)
	}
	sums := make([]byte, 8*BlockBuckets)
	for name, c := range map[string]struct {
		q BlockQuery
		s BlockSizes
	}{
		"no sums":          {BlockQuery{}, BlockSizes{}},
		"unrequested list": {BlockQuery{}, BlockSizes{Sums: sums, List: make([]byte, blockRecord)}},
		"half a record":    {BlockQuery{Buckets: []uint16{1}}, BlockSizes{List: make([]byte, blockRecord+1)}},
		"long list":        {BlockQuery{Buckets: []uint16{1}}, BlockSizes{List: make([]byte, blockRecord*(MaxBlockFiles+1))}},
		"other inode":      {BlockQuery{Inodes: []uint64{1}}, BlockSizes{Paths: []InodePath{{2, "a"}}}},
		"repeated inode":   {BlockQuery{Inodes: []uint64{1}}, BlockSizes{Paths: []InodePath{{1, "a"}, {1, "b"}}}},
	} {
		require.Error(t, c.s.Check(c.q), name)
	}
	require.NoError(t, (&BlockSizes{Sums: sums}).Check(BlockQuery{}))
}
