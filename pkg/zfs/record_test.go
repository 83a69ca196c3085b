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

// TestRecordTypeString also expects a name for types that a forged stream may have.
func TestRecordTypeString(t *testing.T) {
	t.Parallel()
	require.Equal(t, "BEGIN", RecordBegin.String())
	require.Equal(t, "REDACT", RecordRedact.String())
	require.Equal(t, "type 11", (RecordRedact + 1).String())
	require.Equal(t, "type 4294967295", RecordType(1<<32-1).String())
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
		default: // a range: a head, two streams, and an additional END
			require.Len(t, guids, 6, name)
			require.Equal(t, guids[3], guids[4], "%s: each continues the previous one", name)
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
		{"truncated payload", b[:len(b)/2], "", io.ErrUnexpectedEOF},
		{"garbage", bytes.Repeat([]byte("garbage "), 100), "BEGIN", nil},
		{"unknown type", edit(func(b []byte) { b[len(b)-RecordSize] = 99 }), "type 99", nil},
		{"huge payload", huge, "claims", nil},
	} {
		_, err := ContentDigest(bytes.NewReader(test.stream), DigestRange{}, 0)
		require.ErrorContains(t, err, test.says, test.name)
		require.ErrorContains(t, err, "send stream at byte", test.name)
		if test.is != nil {
			require.ErrorIs(t, err, test.is, test.name)
		}
	}
	broken := errors.New("disk on fire")
	_, err := ContentDigest(io.MultiReader(bytes.NewReader(b[:RecordSize]), iotest.ErrReader(broken)), DigestRange{}, 0)
	require.ErrorIs(t, err, broken)
}

func TestContentDigest(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, name := range samples {
		source, target := sampled(t, name+".source"), sampled(t, name+".target")
		require.NotEqual(t, source, target, name)
		all, err := ContentDigest(bytes.NewReader(source), DigestRange{}, 0)
		want := all.Sum
		require.NoError(t, err)
		require.Equal(t, uint64(len(source)), all.Bytes)
		require.Len(t, want, 32)
		got, err := ContentDigest(iotest.OneByteReader(bytes.NewReader(target)), DigestRange{}, 0)
		require.NoError(t, err)
		require.Equal(t, want, got.Sum, name)
		require.True(t, all.SameContents(got), name)
		require.Equal(t, all.BlockSizes, got.BlockSizes, name)
		require.Equal(t, all.Parts, got.Parts, name)
		require.Empty(t, seen[want], "%s has the digest of another", name)
		seen[want] = name
	}
}

// TestContentDigestOfRecords expects that each part of a record that is content affects the digest,
// and that other parts do not.
func TestContentDigestOfRecords(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain-full", "lec-full", "raw-full"} {
		b := sampled(t, name+".source")
		want, err := ContentDigest(bytes.NewReader(b), DigestRange{}, 0)
		require.NoError(t, err)
		sum := func(at int) string {
			c := bytes.Clone(b)
			c[at] ^= 1
			got, err := ContentDigest(bytes.NewReader(c), DigestRange{}, 0)
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

// TestContentDigestOrder expects that the order of records does not affect the digest, and that
// their number does.
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
	want, err := ContentDigest(bytes.NewReader(b), DigestRange{}, 0)
	require.NoError(t, err)
	n := len(records)
	swapped := append([][]byte{}, records...)
	swapped[1], swapped[n-3] = swapped[n-3], swapped[1]
	got, err := ContentDigest(bytes.NewReader(bytes.Join(swapped, nil)), DigestRange{}, 0)
	require.NoError(t, err)
	require.Equal(t, want, got)

	object := 0
	for i, r := range records {
		if binary.LittleEndian.Uint32(r) == uint32(RecordObject) {
			object = i
		}
	}
	twice := append(append([][]byte{}, records[:n-1]...), records[object], records[object], records[n-1])
	got, err = ContentDigest(bytes.NewReader(bytes.Join(twice, nil)), DigestRange{}, 0)
	require.NoError(t, err)
	require.NotEqual(t, want.Sum, got.Sum)
}

// TestContentDigestOfZeroedRanges expects that ranges have one sum however they are divided, whether they
// are freed or hold zeros, that each of their ends counts, and that nothing behind the end of a file
// and nothing in a full stream does.
func TestContentDigestOfZeroedRanges(t *testing.T) {
	t.Parallel()
	sum := func(end uint64, add func(d *digest)) Sum {
		d := digest{parts: map[uint64]Sum{}, incremental: true, guid: 1, object: 7, end: end}
		add(&d)
		return d.zeroed
	}
	const none = 1<<64 - 1
	want := sum(none, func(d *digest) { d.zero(7, 1024, 4096) })
	require.NotEqual(t, Sum{}, want)
	for name, add := range map[string]func(d *digest){
		"divided":   func(d *digest) { d.zero(7, 2048, 3072); d.zero(7, 1024, 1024) },
		"written":   func(d *digest) { d.data(7, 1024, make([]byte, 4096)) },
		"both":      func(d *digest) { d.data(7, 1024, make([]byte, 512)); d.zero(7, 1536, 3584) },
		"with data": func(d *digest) { d.data(7, 512, append(bytes.Repeat([]byte{1}, 512), make([]byte, 4096)...)) },
	} {
		require.Equal(t, want, sum(none, add), name)
	}
	require.Equal(t, want, sum(5000/512*512+512, func(d *digest) { d.zero(7, 1024, none) }), "behind the end of the file")
	for name, add := range map[string]func(d *digest){
		"other start":  func(d *digest) { d.zero(7, 512, 4608) },
		"other end":    func(d *digest) { d.zero(7, 1024, 4608) },
		"other object": func(d *digest) { d.zero(8, 1024, 4096) },
		"a hole in it": func(d *digest) { d.zero(7, 1024, 1024); d.zero(7, 2560, 2560) },
		"missing":      func(*digest) {},
	} {
		require.NotEqual(t, want, sum(none, add), name)
	}
	require.Equal(t, Sum{}, sum(none, func(d *digest) { d.incremental = false; d.zero(7, 1024, 4096) }), "full")
}

// TestContentDigestOfBlockSizes expects that another block size of a file in a stream that is not raw
// changes BlockSizes alone.
func TestContentDigestOfBlockSizes(t *testing.T) {
	t.Parallel()
	b := sampled(t, "plain-full.source")
	want, err := ContentDigest(bytes.NewReader(b), DigestRange{}, 0)
	require.NoError(t, err)
	s, files := NewStreamReader(bytes.NewReader(b)), 0
	for {
		_, err := s.Payload()
		require.NoError(t, err)
		at := int(s.Offset())
		r, err := s.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		if r.Type != RecordObject || r.u32(16) != fileContents {
			continue
		}
		files++
		require.NotEqual(t, uint64(1<<64-1), fileEnd(r, b[at+RecordSize:at+RecordSize+int(r.PayloadSize())]), "the size of a file is known")
		c := bytes.Clone(b)
		c[at+25] ^= 2
		got, err := ContentDigest(bytes.NewReader(c), DigestRange{}, 0)
		require.NoError(t, err)
		require.True(t, want.SameContents(got))
		require.NotEqual(t, want.BlockSizes, got.BlockSizes)
	}
	require.NotZero(t, files)
}

// TestStreamReaderBigEndian reads a stream of a big-endian host. No such host was available for a
// capture, so the test converts a record itself.
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
	stream := streamOf(object{2, noise(5000, 1), 1024})
	sums := map[string]bool{}
	for _, seed := range []uint64{0, 1, 2, 2} {
		c, err := ContentDigest(bytes.NewReader(stream), DigestRange{}, seed)
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
		d, err := ContentDigest(bytes.NewReader(b), DigestRange{}, 0)
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
		"plain": streamOf(object{2, noise(64<<20, 1), 128 << 10}),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(stream)))
			for b.Loop() {
				_, err := ContentDigest(bytes.NewReader(stream), DigestRange{}, 0)
				require.NoError(b, err)
			}
		})
	}
}

// described is a record without its bytes.
type described struct {
	typ                                            RecordType
	object, objects, offset, length, payload, guid uint64
}

func describe(r *Record) described {
	return described{r.Type, r.Object(), r.Objects(), r.Offset(), r.Length(), r.PayloadSize(), r.ToGUID()}
}

// walked returns the records that a RecordScanner finds in pieces of a size.
func walked(t testing.TB, b []byte, size int) (all []described, err error) {
	t.Helper()
	var w RecordScanner
	for at := 0; at < len(b); at += size {
		piece := b[at:min(at+size, len(b))]
		for len(piece) > 0 {
			var payload []byte
			payload, piece = w.Payload(piece)
			if len(payload) > 0 {
				continue
			}
			var r *Record
			r, piece, err = w.Header(piece)
			if err != nil {
				return all, err
			}
			if r != nil {
				all = append(all, describe(r))
			}
		}
		require.EqualValues(t, min(at+size, len(b)), w.Offset())
	}
	return all, nil
}

// read returns the records that a StreamReader finds.
func read(t testing.TB, b []byte) (all []described) {
	t.Helper()
	s := NewStreamReader(iotest.DataErrReader(bytes.NewReader(b)))
	for {
		r, err := s.Next()
		if err == io.EOF {
			return all
		}
		require.NoError(t, err)
		all = append(all, describe(r))
	}
}

// TestWalkerAndReaderAgree compares the readers, for pieces of any size.
func TestWalkerAndReaderAgree(t *testing.T) {
	t.Parallel()
	for _, name := range samples {
		b := sampled(t, name+".source")
		want := read(t, b)
		require.NotEmpty(t, want)
		for _, size := range []int{1, 7, 311, 312, 313, 4096, len(b)} {
			got, err := walked(t, b, size)
			require.NoError(t, err)
			require.Equal(t, want, got, "%s by %d", name, size)
		}
	}
}

// TestRecordFields reads each field of hand-made records in both byte orders.
func TestRecordFields(t *testing.T) {
	t.Parallel()
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		header := func(typ RecordType, words map[int]uint64, narrow map[int]uint32, bytes map[int]byte) []byte {
			h := make([]byte, RecordSize)
			order.PutUint32(h, uint32(typ))
			for at, v := range words {
				order.PutUint64(h[at:], v)
			}
			for at, v := range narrow {
				order.PutUint32(h[at:], v)
			}
			for at, v := range bytes {
				h[at] = v
			}
			return h
		}
		for _, tt := range []struct {
			header []byte
			want   described
		}{
			{header(RecordObject, map[int]uint64{8: 5, 40: 9}, map[int]uint32{28: 44}, map[int]byte{34: 4}), described{RecordObject, 5, 4, 0, 0, 48, 9}},
			{header(RecordObject, map[int]uint64{8: 5, 40: 9}, map[int]uint32{28: 44, 36: 317}, nil), described{RecordObject, 5, 1, 0, 0, 317, 9}},
			{header(RecordFreeObjects, map[int]uint64{8: 5, 16: 70, 24: 9}, nil, nil), described{RecordFreeObjects, 5, 70, 0, 0, 0, 9}},
			{header(RecordWrite, map[int]uint64{8: 5, 24: 1024, 32: 512, 40: 9, 96: 3}, nil, nil), described{RecordWrite, 5, 1, 1024, 512, 512, 9}},
			{header(RecordWrite, map[int]uint64{8: 5, 24: 1024, 32: 512, 40: 9, 96: 3}, nil, map[int]byte{50: 15}), described{RecordWrite, 5, 1, 1024, 512, 3, 9}},
			{header(RecordFree, map[int]uint64{8: 5, 16: 1024, 24: 512, 32: 9}, nil, nil), described{RecordFree, 5, 1, 1024, 512, 0, 9}},
			{header(RecordEnd, map[int]uint64{8: 5, 40: 9}, nil, nil), described{RecordEnd, 0, 0, 0, 0, 0, 9}},
			{header(RecordWriteByRef, map[int]uint64{8: 5, 16: 1024, 24: 512, 32: 9}, nil, nil), described{RecordWriteByRef, 5, 1, 1024, 512, 0, 9}},
			{header(RecordSpill, map[int]uint64{8: 5, 16: 1024, 24: 9}, nil, nil), described{RecordSpill, 5, 1, 0, 1024, 1024, 9}},
			{header(RecordSpill, map[int]uint64{8: 5, 16: 1024, 24: 9, 40: 700}, nil, nil), described{RecordSpill, 5, 1, 0, 1024, 700, 9}},
			{header(RecordWriteEmbedded, map[int]uint64{8: 5, 16: 1024, 24: 512, 32: 9}, map[int]uint32{52: 33}, nil), described{RecordWriteEmbedded, 5, 1, 1024, 512, 40, 9}},
			{header(RecordObjectRange, map[int]uint64{8: 32, 16: 32, 24: 9}, nil, nil), described{RecordObjectRange, 32, 32, 0, 0, 0, 9}},
			{header(RecordRedact, map[int]uint64{8: 5, 16: 1024, 24: 512, 32: 9}, nil, nil), described{RecordRedact, 5, 1, 1024, 512, 0, 9}},
		} {
			var r Record
			require.NoError(t, r.parse(tt.header, order))
			require.Equal(t, tt.want, describe(&r), "%s", r.Type)
			require.NotContains(t, r.Type.String(), "type")
		}
		var r Record
		for size, ok := range map[uint64]bool{maxBlock: true, maxBlock + 1: false, 1 << 63: false} {
			require.Equal(t, ok, r.parse(header(RecordWrite, map[int]uint64{32: size}, nil, nil), order) == nil)
		}
		require.ErrorContains(t, r.parse(header(11, nil, nil, nil), order), "type 11")
	}
}

// TestWalkerKeepsNoPayload walks a large stream without memory for it.
func TestWalkerKeepsNoPayload(t *testing.T) {
	begin := sampled(t, "plain-full.source")[:RecordSize]
	write := make([]byte, RecordSize)
	binary.LittleEndian.PutUint32(write, uint32(RecordWrite))
	binary.LittleEndian.PutUint64(write[32:], maxBlock)
	payload := make([]byte, 1<<20)
	var w RecordScanner
	_, _, err := w.Header(begin)
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		r, rest, err := w.Header(write)
		if err != nil || len(rest) > 0 || r.PayloadSize() != maxBlock {
			t.Error(err)
		}
		for w.Left() > 0 {
			_, _ = w.Payload(payload)
		}
	}))
}

// TestStreamReaderReadsPayloads reads payloads in parts, whole, and not at all.
func TestStreamReaderReadsPayloads(t *testing.T) {
	t.Parallel()
	b := sampled(t, "lec-full.source")
	s := NewStreamReader(iotest.OneByteReader(bytes.NewReader(b)))
	for i := 0; ; i++ {
		r, err := s.Next()
		if err == io.EOF {
			require.EqualValues(t, len(b), s.Offset())
			return
		}
		require.NoError(t, err)
		want := b[s.Offset() : s.Offset()+r.PayloadSize()]
		switch i % 3 {
		case 1:
			got := make([]byte, min(10, len(want)))
			_, err := io.ReadFull(s, got)
			require.NoError(t, err)
			want = want[len(got):]
			rest, err := s.Payload()
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, rest))
		case 2:
			got, err := io.ReadAll(s)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
		}
	}
}
