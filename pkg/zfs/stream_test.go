package zfs

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// sampled returns a stream of testdata/zfs-2.3.9/streams. NAME.source comes from the
// host that created the data, NAME.target from the host that received it.
func sampled(t testing.TB, name string) []byte {
	t.Helper()
	return unpacked(t, testenv.Data(t, "zfs-2.3.9", "streams", name+".gz"))
}

func unpacked(t testing.TB, file string) []byte {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	b, err := io.ReadAll(z)
	require.NoError(t, err)
	return b
}

var samples = []string{"plain-full", "plain-incr", "plain-range", "lec-full", "lec-incr", "lec-range",
	"raw-full", "raw-incr", "raw-range", "vol-full", "vol-incr", "vol-range"}

// allSamples returns all captured streams by their path.
func allSamples(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob(testenv.Data(t, "zfs-2.*", "streams", "*.gz"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	all := map[string][]byte{}
	for _, file := range files {
		all[file] = unpacked(t, file)
	}
	return all
}

func walk(t testing.TB, b []byte) (types []RecordType, guids []uint64) {
	t.Helper()
	s := NewStreamReader(iotest.HalfReader(bytes.NewReader(b)))
	for {
		r, err := s.Next()
		if err == io.EOF {
			require.Equal(t, uint64(len(b)), s.Offset())
			return types, guids
		}
		require.NoError(t, err)
		types = append(types, r.Type)
		if r.Type == RecordBegin {
			guids = append(guids, r.FromGUID(), r.ToGUID())
			require.Contains(t, r.ToName(), "@")
		}
	}
}

func TestStreamReader(t *testing.T) {
	t.Parallel()
	for _, name := range samples {
		types, guids := walk(t, sampled(t, name+".source"))
		_, target := walk(t, sampled(t, name+".target"))
		require.Equal(t, guids, target, name)
		require.Equal(t, RecordBegin, types[0], name)
		require.Equal(t, RecordEnd, types[len(types)-1], name)
		switch {
		case strings.HasSuffix(name, "-full"):
			require.Zero(t, guids[0], name)
			require.NotZero(t, guids[1], name)
		case strings.HasSuffix(name, "-incr"):
			require.NotZero(t, guids[0], name)
		default: // a range: a head, two streams, and an END of its own
			require.Len(t, guids, 6, name)
			require.Equal(t, guids[3], guids[4], "%s: each goes on from the one before", name)
			require.Equal(t, []RecordType{RecordEnd, RecordEnd}, types[len(types)-2:], name)
		}
	}
	_, raw := walk(t, sampled(t, "raw-full.source"))
	require.Len(t, raw, 2)
}

func TestStreamReaderFails(t *testing.T) {
	t.Parallel()
	b := sampled(t, "plain-full.source")
	edit := func(f func(b []byte)) []byte {
		c := bytes.Clone(b)
		f(c)
		return c
	}
	huge := edit(func(b []byte) { binary.LittleEndian.PutUint32(b[4:], 1<<31) })
	for _, test := range []struct {
		name   string
		stream []byte
		says   string
		is     error
	}{
		{"empty", nil, "before its END", io.ErrUnexpectedEOF},
		{"half a record", b[:100], "record", io.ErrUnexpectedEOF},
		{"no END", b[:len(b)-RecordSize], "before its END", io.ErrUnexpectedEOF},
		{"cut in a payload", b[:len(b)/2], "", io.ErrUnexpectedEOF},
		{"garbage", bytes.Repeat([]byte("garbage "), 100), "BEGIN", nil},
		{"unknown type", edit(func(b []byte) { b[len(b)-RecordSize] = 99 }), "type 99", nil},
		{"huge payload", huge, "claims", nil},
	} {
		_, err := ContentDigest(bytes.NewReader(test.stream), Within{}, 0)
		require.ErrorContains(t, err, test.says, test.name)
		require.ErrorContains(t, err, "send stream at byte", test.name)
		if test.is != nil {
			require.ErrorIs(t, err, test.is, test.name)
		}
	}
	broken := errors.New("disk on fire")
	_, err := ContentDigest(io.MultiReader(bytes.NewReader(b[:RecordSize]), iotest.ErrReader(broken)), Within{}, 0)
	require.ErrorIs(t, err, broken)
}

func TestContentDigest(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, name := range samples {
		source, target := sampled(t, name+".source"), sampled(t, name+".target")
		require.NotEqual(t, source, target, name)
		all, err := ContentDigest(bytes.NewReader(source), Within{}, 0)
		want := all.Sum
		require.NoError(t, err)
		require.Equal(t, uint64(len(source)), all.Bytes)
		require.Len(t, want, 32)
		got, err := ContentDigest(iotest.OneByteReader(bytes.NewReader(target)), Within{}, 0)
		require.NoError(t, err)
		require.Equal(t, want, got.Sum, name)
		require.Equal(t, all.Parts, got.Parts, name)
		require.Empty(t, seen[want], "%s has the digest of another", name)
		seen[want] = name
	}
}

// Each part of a record that is content counts, and each that is not does not.
func TestContentDigestOfRecords(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain-full", "lec-full", "raw-full"} {
		b := sampled(t, name+".source")
		want, err := ContentDigest(bytes.NewReader(b), Within{}, 0)
		require.NoError(t, err)
		sum := func(at int) string {
			c := bytes.Clone(b)
			c[at] ^= 1
			got, err := ContentDigest(bytes.NewReader(c), Within{}, 0)
			require.NoError(t, err)
			return got.Sum
		}
		s := NewStreamReader(bytes.NewReader(b))
		for {
			_, err := s.Payload()
			require.NoError(t, err)
			at := int(s.Offset())
			r, err := s.Next()
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			if n := int(r.PayloadSize()); n > 0 && r.Type != RecordBegin {
				require.NotEqual(t, want.Sum, sum(at+RecordSize+n/2), "%s: payload of a record of type %d", name, r.Type)
			}
			switch r.Type {
			case RecordBegin:
				require.Equal(t, want.Sum, sum(at+60), "name")
				require.Equal(t, want.Sum, sum(at+24), "creation time")
				require.NotEqual(t, want.Sum, sum(at+40), "GUID")
			case RecordEnd, RecordFree, RecordFreeObjects:
				require.Equal(t, want.Sum, sum(at+20))
			case RecordWrite:
				require.NotEqual(t, want.Sum, sum(at+8), "object")
				require.NotEqual(t, want.Sum, sum(at+25), "offset")
				require.NotEqual(t, want.Sum, sum(at+130), "MAC")
				require.Equal(t, want.Sum, sum(at+RecordSize-1), "checksum of the stream")
			}
		}
	}
}

// Records are added up: order does not matter, number does.
func TestContentDigestOrder(t *testing.T) {
	t.Parallel()
	b := sampled(t, "plain-full.source")
	var records [][]byte
	s := NewStreamReader(bytes.NewReader(b))
	for at := uint64(0); ; at = s.Offset() {
		_, err := s.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		_, err = s.Payload()
		require.NoError(t, err)
		records = append(records, b[at:s.Offset()])
	}
	want, err := ContentDigest(bytes.NewReader(b), Within{}, 0)
	require.NoError(t, err)
	n := len(records)
	swapped := append([][]byte{}, records...)
	swapped[1], swapped[n-3] = swapped[n-3], swapped[1]
	got, err := ContentDigest(bytes.NewReader(bytes.Join(swapped, nil)), Within{}, 0)
	require.NoError(t, err)
	require.Equal(t, want, got)

	object := 0
	for i, r := range records {
		if binary.LittleEndian.Uint32(r) == uint32(RecordObject) {
			object = i
		}
	}
	twice := append(append([][]byte{}, records[:n-1]...), records[object], records[object], records[n-1])
	got, err = ContentDigest(bytes.NewReader(bytes.Join(twice, nil)), Within{}, 0)
	require.NoError(t, err)
	require.NotEqual(t, want.Sum, got.Sum)
}

// Streams of big-endian hosts: no one at hand to capture from, so a record
// turned by hand.
func TestStreamReaderBigEndian(t *testing.T) {
	t.Parallel()
	b := make([]byte, 2*RecordSize)
	binary.BigEndian.PutUint64(b[8:], beginMagic)
	binary.BigEndian.PutUint64(b[40:], 42)
	copy(b[56:], "tank/a@x")
	binary.BigEndian.PutUint32(b[RecordSize:], uint32(RecordEnd))
	_, guids := walk(t, b)
	require.Equal(t, []uint64{0, 42}, guids)
}

// TestContentDigestDependsOnTheSeed compares digests of one stream with different seeds.
func TestContentDigestDependsOnTheSeed(t *testing.T) {
	t.Parallel()
	stream := made(object{2, noise(5000, 1), 1024})
	sums := map[string]bool{}
	for _, seed := range []uint64{0, 1, 2, 2} {
		c, err := ContentDigest(bytes.NewReader(stream), Within{}, seed)
		require.NoError(t, err)
		sums[c.Sum] = true
	}
	require.Len(t, sums, 3)
}

func FuzzContentDigest(f *testing.F) {
	for _, name := range []string{"vol-full", "vol-incr", "vol-range"} {
		f.Add(sampled(f, name+".source"))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ContentDigest(bytes.NewReader(b), Within{}, 0)
		require.LessOrEqual(t, d.Bytes, uint64(len(b)))
		if err == nil {
			require.Len(t, d.Sum, 32)
			require.LessOrEqual(t, len(d.Parts), MaxParts)
			require.Equal(t, uint64(len(b)), d.Bytes)
			require.GreaterOrEqual(t, len(b), 2*RecordSize)
		}
	})
}

func BenchmarkContentDigest(b *testing.B) {
	raw := sampled(b, "raw-full.source")
	for name, stream := range map[string][]byte{
		"raw":   append(append([]byte{}, bytes.Repeat(raw[:len(raw)-RecordSize], 2000)...), raw[len(raw)-RecordSize:]...),
		"plain": made(object{2, noise(64<<20, 1), 128 << 10}),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(stream)))
			for b.Loop() {
				_, err := ContentDigest(bytes.NewReader(stream), Within{}, 0)
				require.NoError(b, err)
			}
		})
	}
}
