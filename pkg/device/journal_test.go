package device

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
)

// copyPair returns a source and a target of a copy of four blocks.
func copyPair() (src, dst Facts) {
	src = Facts{Path: "/dev/sda", Real: "/dev/sda", Kind: KindDisk, Serial: "S1", Size: 4 << 16}
	dst = Facts{Path: "/dev/sdb", Real: "/dev/sdb", Kind: KindDisk, Serial: "S2", Size: 5 << 16}
	return src, dst
}

func stored(j *Journal) map[int64]Sum {
	out := map[int64]Sum{}
	for i, sum := range j.Stored() {
		if sum != (Sum{}) {
			out[int64(i)] = sum
		}
	}
	return out
}

func TestJournalRecordsBlocks(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	src, dst := copyPair()
	j, reason, err := openJournal(dir, src, dst, BlockHash{Block: 1 << 16}, journalRead)
	require.NoError(t, err)
	require.Nil(t, j)
	require.Empty(t, reason)
	require.NoDirExists(t, dir, "reading changes nothing")

	j, reason, err = openJournal(dir, src, dst, BlockHash{Block: 1 << 16}, journalResume)
	require.NoError(t, err)
	require.Empty(t, reason)
	require.NoError(t, j.Add(storedBlocks([]storedBlock{{3, Sum{3}}, {0, Sum{9}}})))
	require.NoError(t, j.Add(storedBlocks([]storedBlock{{0, Sum{1}}}))) // the last record counts
	_, _, err = openJournal(dir, src, dst, BlockHash{Block: 1 << 16}, journalResume)
	require.ErrorContains(t, err, "another copy to /dev/sdb is running")
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.NoError(t, j.Close())

	for _, use := range []journalUse{journalRead, journalResume} {
		j, reason, err = openJournal(dir, src, dst, BlockHash{Block: 1 << 16}, use)
		require.NoError(t, err)
		require.Empty(t, reason)
		require.Equal(t, 2, j.recorded)
		require.Equal(t, map[int64]Sum{0: {1}, 3: {3}}, stored(j))
		if use == journalResume {
			require.NoError(t, j.Add(storedBlocks([]storedBlock{{1, Sum{2}}})))
			require.NoError(t, j.Remove())
		} else {
			require.NoError(t, j.Close())
		}
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestTornJournal expects that a truncated or corrupted journal yields only records that were
// written.
func TestTornJournal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src, dst := copyPair()
	j, _, err := openJournal(dir, src, dst, BlockHash{Block: 1 << 16}, journalResume)
	require.NoError(t, err)
	all := map[int64]Sum{0: {1}, 1: {2}, 2: {3}}
	for i := range int64(3) {
		require.NoError(t, j.Add(storedBlocks([]storedBlock{{i, all[i]}})))
	}
	require.NoError(t, j.Close())
	whole, err := os.ReadFile(j.path)
	require.NoError(t, err)
	try := func(raw []byte) {
		require.NoError(t, os.WriteFile(j.path, raw, 0o600))
		j, _, err := openJournal(dir, src, dst, BlockHash{Block: 1 << 16}, journalResume)
		require.NoError(t, err)
		got := stored(j)
		require.Subset(t, all, got)
		// Records added after damage are found by the next open.
		require.NoError(t, j.Add(storedBlocks([]storedBlock{{3, Sum{4}}})))
		require.NoError(t, j.Close())
		again, _, err := openJournal(dir, src, dst, BlockHash{Block: 1 << 16}, journalRead)
		require.NoError(t, err)
		got[3] = Sum{4}
		require.Equal(t, got, stored(again))
		require.NoError(t, again.Close())
	}
	for n := 0; n < len(whole); n += 7 {
		try(whole[:n])
		flipped := append([]byte(nil), whole...)
		flipped[n] ^= 0x10
		try(flipped)
	}
	try(append(append([]byte(nil), whole...), make([]byte, 100)...))
}

func TestJournalOfAnotherCopy(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, c := range []struct {
		name   string
		change func(src, dst *Facts, block *int)
		want   string
	}{
		{"the same", func(*Facts, *Facts, *int) {}, ""},
		{"another source", func(src, _ *Facts, _ *int) { src.Serial = "S3" }, "another source"},
		{"a partition instead of the disk", func(src, _ *Facts, _ *int) { src.Start = 512 }, "another source"},
		{"larger source", func(src, _ *Facts, _ *int) { src.Size++ }, "size changed"},
		{"source written to", func(src, _ *Facts, _ *int) { src.ModTime = src.ModTime.Add(time.Nanosecond) }, "modified since"},
		{"target of another size", func(_, dst *Facts, _ *int) { dst.Size++ }, "the target"},
		{"block size", func(_, _ *Facts, block *int) { *block *= 2 }, "{{bs 65536}}"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir, block := t.TempDir(), 1<<16
			src, dst := copyPair()
			src.Kind, src.ModTime = KindFile, time.Unix(1, 0)
			if c.name == "another source" || c.name == "a partition instead of the disk" {
				src.Kind = KindDisk
			}
			j, _, err := openJournal(dir, src, dst, BlockHash{Block: block}, journalResume)
			require.NoError(t, err)
			require.NoError(t, j.Add(storedBlocks([]storedBlock{{1, Sum{1}}})))
			require.NoError(t, j.Close())
			before, err := os.ReadFile(j.path)
			require.NoError(t, err)
			c.change(&src, &dst, &block)
			j, reason, err := openJournal(dir, src, dst, BlockHash{Block: block}, journalRead)
			require.NoError(t, err)
			require.NoError(t, j.Close())
			after, err := os.ReadFile(j.path)
			require.NoError(t, err)
			require.Equal(t, before, after, "reading changes nothing")
			if c.want == "" {
				require.Empty(t, reason)
				require.Equal(t, 1, j.recorded)
				return
			}
			require.Contains(t, reason, c.want)
			require.Zero(t, j.recorded)
			// The journal starts empty, with a reason.
			j, reason, err = openJournal(dir, src, dst, BlockHash{Block: block}, journalResume)
			require.NoError(t, err)
			require.Contains(t, reason, c.want)
			require.Zero(t, j.recorded)
			require.NoError(t, j.Close())
		})
	}
}

// TestJournalOfRecreatedFile expects that a recreated file has no valid journal. A missing file has no
// journal.
func TestJournalOfRecreatedFile(t *testing.T) {
	t.Parallel()
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "image")
	src, _ := copyPair()
	missing := Facts{Path: file, Real: file, Kind: KindMissing}
	j, _, err := openJournal(dir, src, missing, BlockHash{Block: 1 << 16}, journalRead)
	require.NoError(t, err)
	require.Nil(t, j)
	_, _, err = openJournal(dir, src, missing, BlockHash{Block: 1 << 16}, journalResume)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	j, _, err = openJournal(dir, src, missing, BlockHash{Block: 1 << 16}, journalResume)
	require.NoError(t, err)
	require.NoError(t, j.Add(storedBlocks([]storedBlock{{1, Sum{1}}})))
	require.NoError(t, j.Close())
	found := missing
	found.Kind = KindFile
	j, reason, err := openJournal(dir, src, found, BlockHash{Block: 1 << 16}, journalRead)
	require.NoError(t, err)
	require.Empty(t, reason)
	require.Equal(t, 1, j.recorded)
	require.NoError(t, j.Close())

	require.NoError(t, os.WriteFile(file+".new", nil, 0o600))
	require.NoError(t, os.Rename(file+".new", file))
	j, reason, err = openJournal(dir, src, found, BlockHash{Block: 1 << 16}, journalRead)
	require.NoError(t, err)
	require.Contains(t, reason, "the target")
	require.NoError(t, j.Close())
}

// TestJournalOfOtherHashes expects that a journal of quick sums is unusable for a copy with other
// sums.
func TestJournalOfOtherHashes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src, dst := copyPair()
	quick := BlockHash{Block: 1 << 16, Quick: true}
	j, _, err := openJournal(dir, src, dst, quick, journalResume)
	require.NoError(t, err)
	require.NoError(t, j.Add(storedBlocks([]storedBlock{{2, Sum{7}}})))
	require.NoError(t, j.Close())
	j, reason, err := openJournal(dir, src, dst, BlockHash{Block: 1 << 16}, journalRead)
	require.NoError(t, err)
	require.Empty(t, reason)
	require.Equal(t, XXH3, j.cut.Name(), "a reader gets the hash")
	require.NoError(t, j.Close())
	j, reason, err = openJournal(dir, src, dst, quick, journalRead)
	require.NoError(t, err)
	require.Empty(t, reason)
	require.Equal(t, map[int64]Sum{2: {7}}, stored(j))
	require.NoError(t, j.Close())
	j, reason, err = openJournal(dir, src, dst, BlockHash{Block: 1 << 16}, journalResume)
	require.NoError(t, err)
	require.Equal(t, "its hashes have another algorithm", reason)
	require.Zero(t, j.recorded)
	require.NoError(t, j.Close())
}

// TestJournalIdentifiesOwnSignatures expects that signatures need no consent only if the copy itself
// wrote them.
func TestJournalIdentifiesOwnSignatures(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "image")
	data := noise(4 << 16)
	require.NoError(t, os.WriteFile(file, data, 0o600))
	src, _ := copyPair()
	dst := Facts{Path: file, Real: file, Kind: KindFile, Size: 4 << 16}
	old := Signature{Device: file, Type: "btrfs", Offset: 3 << 16, UUID: "old"}
	dst.Signatures = []Signature{old}
	dir := t.TempDir()
	cut := BlockHash{Block: 1 << 16}
	j, _, err := openJournal(dir, src, dst, cut, journalResume)
	require.NoError(t, err)
	check := func(usable, wrote bool, why string) {
		t.Helper()
		u, w, err := j.Check(dst)
		require.NoError(t, err)
		require.Equal(t, []bool{usable, wrote}, []bool{u, w}, why)
	}
	dst.Signatures = nil
	check(false, false, "it wrote nothing, and the file holds something")
	require.NoError(t, j.Add(storedBlocks([]storedBlock{{1, LeafHash(data[1<<16:2<<16], 1<<16, 4<<16)}})))
	require.NoError(t, j.Close())
	j, _, err = openJournal(dir, src, dst, cut, journalRead)
	require.NoError(t, err)
	check(true, true, "there is no signature")
	own := Signature{Device: file, Type: "ext4", Offset: 1<<16 + 0x438}
	dst.Signatures = []Signature{own}
	check(true, true, "it wrote it")
	dst.Signatures = []Signature{own, {Device: file, Type: "xfs", Offset: 2 << 16}}
	check(false, false, "a block that it did not write")
	// Signatures from before the copy need consent, but the copy can resume, also
	// after the journal is reopened.
	dst.Signatures = []Signature{own, old}
	check(true, false, "it was there before")
	require.NoError(t, j.Close())
	j, _, err = openJournal(dir, src, dst, cut, journalResume)
	require.NoError(t, err)
	defer j.Close()
	check(true, false, "it was there before")
	dst.Signatures[1].UUID = "new"
	check(false, false, "somebody made another since")
	dst.Signatures = []Signature{own}
	data[1<<16]++
	require.NoError(t, os.WriteFile(file, data, 0o600))
	check(false, false, "somebody else wrote since")
	dst.Signatures = nil
	check(false, false, "somebody else wrote since, without a signature")
}

// TestJournalOfTruncatedFile expects that a truncated file does not match its journal.
func TestJournalOfTruncatedFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Truncate(file, 64<<16))
	src, _ := copyPair()
	src.Size = 64 << 16
	dst := Facts{Path: file, Real: file, Kind: KindFile, Size: 64 << 16}
	for _, quick := range []bool{false, true} {
		cut := BlockHash{Block: 1 << 16, Quick: quick}
		dir := t.TempDir()
		j, _, err := openJournal(dir, src, dst, cut, journalResume)
		require.NoError(t, err)
		_, wrote, err := j.Check(dst)
		require.NoError(t, err)
		require.True(t, wrote, "the copy created the empty file")
		zeros := make([]byte, 1<<16)
		for i := range int64(60) {
			sum := cut.Sum(zeros, i<<16, 64<<16)
			if i >= 30 {
				sum = cut.Sum(noise(1<<16), i<<16, 64<<16)
			}
			require.NoError(t, j.Add(storedBlocks([]storedBlock{{i, sum}})))
		}
		require.NoError(t, j.Close())
		j, _, err = openJournal(dir, src, dst, cut, journalRead)
		require.NoError(t, err)
		at := j.sampleBlocks()
		require.GreaterOrEqual(t, len(at), samples)
		require.Less(t, len(at), 2*samples+1)
		require.Equal(t, int64(59), at[len(at)-1])
		usable, wrote, err := j.Check(dst)
		require.NoError(t, err)
		require.False(t, usable || wrote)
		require.NoError(t, j.Close())
	}
}
