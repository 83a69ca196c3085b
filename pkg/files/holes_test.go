package files

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// sparse creates a file of a size with texts at offsets.
func sparse(t *testing.T, path string, size int64, texts map[int64]string) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	for at, text := range texts {
		_, err := f.WriteAt([]byte(text), at)
		require.NoError(t, err)
	}
	require.NoError(t, f.Truncate(size))
	require.NoError(t, f.Close())
	require.NoError(t, os.Chtimes(path, time.Unix(9, 0), time.Unix(9, 0)))
}

func blocks(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return st.Blocks
}

// TestHoles transfers files with holes. It expects that the archive holds and counts only their data,
// and that the copies have equal contents and holes.
func TestHoles(t *testing.T) {
	t.Parallel()
	const huge = 1 << 40
	dir := t.TempDir()
	texts := map[int64]string{0: "begin", 5<<20 + 17: "middle", huge / 2: "half", huge - 3: "end"}
	sparse(t, dir+"/huge", huge, texts)
	sparse(t, dir+"/empty", huge, nil)
	sparse(t, dir+"/tail", huge+5, map[int64]string{7: "x"})
	sparse(t, dir+"/small", sparseFrom-1, map[int64]string{70: "x"})
	archive, _ := packed(t, dir, Archive{Paths: []string{""}})
	require.Less(t, len(archive), 3<<20)
	names, _ := packed(t, dir, Archive{Paths: []string{""}, NamesOnly: true})
	to := t.TempDir()
	look, err := unpack(t, names, UnpackOptions{Directory: to, DryRun: true})
	require.NoError(t, err)
	require.Less(t, look.Rest, uint64(2<<20))
	a, err := unpack(t, archive, UnpackOptions{Directory: to})
	require.NoError(t, err)
	require.Equal(t, look.Rest, a.Bytes)
	require.Empty(t, a.Problems)
	q := Query{Snapshot: "pool/a@x"}
	for _, f := range list(t, dir, q) {
		if f.Type == Regular {
			require.Contains(t, list(t, to, q), f)
		}
	}
	for at, text := range texts {
		f, err := os.Open(to + "/huge")
		require.NoError(t, err)
		b := make([]byte, len(text))
		_, err = f.ReadAt(b, at)
		require.NoError(t, err)
		require.Equal(t, text, string(b))
		require.NoError(t, f.Close())
	}
	require.LessOrEqual(t, blocks(t, to+"/huge"), int64(4*chunk/512))
	a, err = unpack(t, archive, UnpackOptions{Directory: to})
	require.NoError(t, err)
	require.EqualValues(t, 4, a.Same)
}

// TestHolesEqualZeros expects equal digests of a hole and of zeros, with and without knowledge of
// holes, and a different digest of data at another offset.
func TestHolesEqualZeros(t *testing.T) {
	t.Parallel()
	const size = 3<<20 + 5
	digest := func(q Query, create func(path string)) Digest {
		dir := t.TempDir()
		create(dir + "/f")
		q.Path = "f"
		return read(t, dir, q)
	}
	hole := func(p string) { sparse(t, p, size, map[int64]string{2 << 20: "x"}) }
	zeros := func(p string) {
		sparse(t, p, size, map[int64]string{0: strings.Repeat("\x00", 2<<20) + "x" + strings.Repeat("\x00", 1<<20+4)})
	}
	other := func(p string) { sparse(t, p, size, map[int64]string{2<<20 + chunk: "x"}) }
	for _, snapshot := range []string{"", "pool/a@x"} {
		q := Query{Snapshot: snapshot}
		require.Equal(t, digest(q, hole), digest(Query{}, zeros), snapshot)
		require.NotEqual(t, digest(q, hole).Parts, digest(q, other).Parts, snapshot)
		require.EqualValues(t, chunk, digest(q, zeros).Bytes)
	}
}

// TestUnpackRefusesForgedExtents expects errors for extents outside of their file, in the wrong
// order, and with more or less data than the header declares.
func TestUnpackRefusesForgedExtents(t *testing.T) {
	t.Parallel()
	extents := func(of ...uint64) (b []byte) {
		for i := 0; i < len(of); i += 2 {
			b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, of[i]), of[i+1])
			b = append(b, bytes.Repeat([]byte("x"), int(min(of[i+1], 64)))...)
		}
		return b
	}
	for name, c := range map[string]struct {
		size, data string
		body       []byte
		valid      bool
	}{
		"valid":          {"100", "20", extents(5, 10, 90, 10), true},
		"no data":        {"100", "0", nil, true},
		"beyond":         {"100", "20", extents(5, 10, 91, 10), false},
		"overflow":       {"100", "20", extents(5, 10, 90, 1<<64-50), false},
		"far":            {"100", "20", extents(1<<63, 10), false},
		"overlap":        {"100", "20", extents(5, 10, 14, 10), false},
		"backwards":      {"100", "20", extents(50, 10, 5, 10), false},
		"empty":          {"100", "20", extents(5, 0, 5, 20), false},
		"too much":       {"100", "15", extents(5, 10, 90, 10), false},
		"too little":     {"100", "30", extents(5, 10, 90, 10), false},
		"cut":            {"100", "20", extents(5, 10, 90, 10)[:40], false},
		"cut header":     {"100", "20", extents(5, 10, 90, 10)[:30], false},
		"more than size": {"100", "101", extents(5, 10), false},
		"negative":       {"100", "-1", nil, false},
		"negative size":  {"-1", "0", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			require.NoError(t, w.WriteHeader(&tar.Header{Format: tar.FormatPAX, Name: "f", Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(c.body)),
				PAXRecords: map[string]string{sizeRecord: c.size, dataRecord: c.data}}))
			_, err := w.Write(c.body)
			require.NoError(t, err)
			require.NoError(t, w.Close())
			to := t.TempDir()
			_, err = unpack(t, b.Bytes(), UnpackOptions{Directory: to})
			if c.valid {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			require.NoFileExists(t, to+"/f")
		})
	}
}

// TestTimes restores times that os.Chtimes cannot set.
func TestTimes(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/dev/shm", "") // tmpfs stores all times
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.MkdirAll(dir+"/from", 0o700))
	want := map[string]unix.Timespec{"1": {Sec: 1 << 40, Nsec: 5}, "2": {Sec: 1 << 34}, "3": {Sec: -5, Nsec: 999999999}, "4": {Sec: -1 << 36}, "5": {Sec: 9224318016, Nsec: 1}}
	for name, at := range want {
		p := dir + "/from/" + name
		require.NoError(t, os.WriteFile(p, nil, 0o600))
		require.NoError(t, unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{at, at}, 0))
	}
	archive, _ := packed(t, dir+"/from", Archive{Paths: []string{""}})
	a, err := unpack(t, archive, UnpackOptions{Directory: dir + "/to"})
	require.NoError(t, err)
	require.Empty(t, a.Problems)
	for name, at := range want {
		var st unix.Stat_t
		require.NoError(t, unix.Stat(dir+"/to/"+name, &st))
		require.Equal(t, at, st.Mtim, name)
	}
	a, err = unpack(t, archive, UnpackOptions{Directory: dir + "/to"})
	require.NoError(t, err)
	require.EqualValues(t, len(want), a.Same)
}

// TestLongNames expects that a name that the target cannot store fails alone, with everything below
// it, and that a name above the limit of ZFS is refused.
func TestLongNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", maxName)
	to := t.TempDir()
	archive := forged(t, tar.Header{Name: "a", Typeflag: tar.TypeReg}, tar.Header{Name: "d/", Typeflag: tar.TypeDir}, tar.Header{Name: "d/" + long, Typeflag: tar.TypeReg},
		tar.Header{Name: long + "/", Typeflag: tar.TypeDir}, tar.Header{Name: long + "/f", Typeflag: tar.TypeReg}, tar.Header{Name: "z", Typeflag: tar.TypeReg})
	for _, dry := range []bool{true, false} {
		a, err := unpack(t, archive, UnpackOptions{Directory: to, DryRun: dry})
		require.NoError(t, err)
		if dry { // the directory "d" does not exist yet
			require.EqualValues(t, 4, a.New)
			require.EqualValues(t, 1, a.Failed)
			continue
		}
		require.EqualValues(t, 3, a.New)
		require.EqualValues(t, 2, a.Failed)
		require.Equal(t, "the target's filesystem cannot store so long a name", a.Problems[0].Why)
		require.Contains(t, a.Problems[1].Why, "nothing below it was restored")
	}
	require.FileExists(t, to+"/z")
	_, err := unpack(t, forged(t, tar.Header{Name: long + "n", Typeflag: tar.TypeReg}), UnpackOptions{Directory: to})
	require.ErrorContains(t, err, "invalid name")
}
