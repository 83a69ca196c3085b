package zfs

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// described is a record without its bytes.
type described struct {
	typ                                            RecordType
	object, objects, offset, length, payload, guid uint64
}

func describe(r *Record) described {
	return described{r.Type, r.Object(), r.Objects(), r.Offset(), r.Length(), r.PayloadSize(), r.ToGUID()}
}

// walked returns the records that a Walker finds in pieces of a size.
func walked(t testing.TB, b []byte, size int) (all []described, err error) {
	t.Helper()
	var w Walker
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
	var w Walker
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
