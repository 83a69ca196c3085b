package transfer

import (
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/wire"
)

// Frames that tell what a target holds tell only of blocks that there are, in
// rising order.
func FuzzHoldings(f *testing.F) {
	f.Add(uint64(0), make([]byte, 2*wire.SumSize), uint64(2), make([]byte, wire.SumSize))
	f.Add(uint64(7), []byte{}, uint64(1<<63), make([]byte, wire.SumSize))
	f.Add(uint64(3), make([]byte, wire.SumSize), uint64(3), make([]byte, wire.SumSize))
	f.Add(uint64(1<<64-1), make([]byte, 5), uint64(0), []byte{1})
	f.Fuzz(func(t *testing.T, at uint64, one []byte, then uint64, two []byte) {
		const count = 7
		h := newHoldings(count)
		first, second := h.parse(at, one), error(nil)
		if first == nil {
			second = h.parse(then, two)
		}
		for _, err := range []error{first, second} {
			if err != nil {
				require.ErrorIs(t, err, wire.ErrTampered)
			}
		}
		require.LessOrEqual(t, h.known, int64(count))
		require.LessOrEqual(t, h.present, int64(count))
		require.True(t, h.sums == nil || len(h.sums) == count)
		if first == nil && second == nil {
			require.GreaterOrEqual(t, then, at+uint64(len(one)/wire.SumSize))
		}
	})
}

// A compressed frame becomes exactly the bytes that its header says, in the
// block that was set aside, or an error.
func FuzzExpand(f *testing.F) {
	e, err := zstd.NewWriter(nil)
	require.NoError(f, err)
	for _, n := range []int{0, 1, 5000, MinBlock, 2 * MinBlock} {
		f.Add(e.EncodeAll(make([]byte, n), nil), uint32(n))
	}
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, uint32(1<<31))
	f.Fuzz(func(t *testing.T, packed []byte, raw uint32) {
		if len(packed) > MinBlock {
			return
		}
		r := newRing(4*MinBlock, MinBlock, 0)
		x := newExpander(Options{CompressThreads: 1}, r)
		defer x.stop()
		p := &piece{header: wire.Header{Kind: wire.Data, Flags: wire.Compressed, Raw: raw}, block: r.get()}
		copy(p.block.Room(), packed)
		p.block.SetLen(len(packed))
		x.piece(p)
		if p.err != nil {
			return
		}
		require.Len(t, p.block.Payload(), int(raw))
		require.LessOrEqual(t, int(raw), MinBlock)
	})
}
