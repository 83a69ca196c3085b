package transfer

import (
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/transport/tcp"
)

// FuzzDecompress expects that a compressed frame decompresses to the size in its header, within its
// block, or fails.
func FuzzDecompress(f *testing.F) {
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
		x := newDecompressStage(Options{Block: MinBlock, CompressThreads: 1}, r)
		defer x.stop()
		p := &piece{header: tcp.Header{Kind: tcp.Data, Flags: tcp.Compressed, Raw: raw}, block: r.get()}
		copy(p.block.Buffer(), packed)
		p.block.SetLen(len(packed))
		x.decompress(p)
		if p.err != nil {
			return
		}
		require.Len(t, p.block.Payload(), int(raw))
		require.LessOrEqual(t, int(raw), MinBlock)
	})
}
