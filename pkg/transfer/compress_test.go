package transfer_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/transport/tcp"
)

func TestCompression(t *testing.T) {
	t.Parallel()
	const size = 6<<20 + 3
	mixed := append(transfertest.Text(3<<20), transfertest.Random(3<<20)...)
	streams := map[string]struct {
		data []byte
		most float64 // largest share of the size on the wire
	}{
		"text": {transfertest.Text(size), 0.3}, "random": {transfertest.Random(size), 1.01}, "mixed": {mixed, 0.8}, "short": {transfertest.Text(10), 100}, "empty": {nil, 0},
	}
	for name, s := range streams {
		for _, compress := range []string{"auto", "zstd", "zstd:7"} {
			for _, mode := range modes {
				for _, n := range []int{1, 3} {
					t.Run(fmt.Sprintf("%s/%s/%s/%d", name, compress, mode, n), func(t *testing.T) {
						t.Parallel()
						a, b := transfertest.Links(t, mode, n, nil)
						sink := newSink()
						o := move(t, a, b, transfertest.NewSource(s.data), sink, transfer.Options{Compress: compress, CompressThreads: 3, Block: 256 << 10, Buffer: 4 << 20})
						require.NoError(t, o.sendErr)
						require.NoError(t, o.receiveErr)
						got, committed := sink.Stored()
						require.True(t, committed)
						require.True(t, bytes.Equal(s.data, got))
						require.Equal(t, o.sent.Digest, o.received.Digest, "the digest covers the stream, not the frames")
						if len(s.data) > 0 {
							require.LessOrEqual(t, float64(o.sent.WireBytes), s.most*float64(len(s.data)))
							require.Equal(t, transfer.StageCompress, o.sent.Stages[1].Name)
						}
					})
				}
			}
		}
	}
}

func TestUnknownCompressionIsRefused(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"gzip", "zstd:0", "zstd:23", "zstd:", "zstd:x", "auto:3"} {
		t.Run(bad, func(t *testing.T) {
			t.Parallel()
			a, b := transfertest.Links(t, tcp.Signed, 1, nil)
			sink := newSink()
			o := move(t, a, b, transfertest.NewSource(nil), sink, transfer.Options{Compress: bad})
			require.Equal(t, fault.Usage, fault.ClassOf(o.sendErr))
			require.ErrorContains(t, o.sendErr, bad)
			require.Error(t, o.receiveErr)
			requireNoEffect(t, sink, nil)
		})
	}
}

// zstdFrame returns a zstd frame with the given header, and blocks of zeros.
func zstdFrame(header []byte, blocks, size int) []byte {
	b := append([]byte{0x28, 0xb5, 0x2f, 0xfd}, header...)
	for i := range blocks {
		head := uint32(size)<<3 | 1<<1 // a run-length block
		if i == blocks-1 {
			head |= 1
		}
		b = append(b, byte(head), byte(head>>8), byte(head>>16), 0)
	}
	return b
}

// TestCompressionBombs sends hostile frames from an authenticated sender. It expects that they
// never decompress to more bytes than their header declares, and that no data is stored.
func TestCompressionBombs(t *testing.T) {
	const block = 64 << 10
	e, err := zstd.NewWriter(nil, zstd.WithEncoderCRC(false))
	require.NoError(t, err)
	honest := e.EncodeAll(make([]byte, block), nil)
	window := func(log byte) []byte { return []byte{0, (log - 10) << 3} } // no content size
	skippable := func(n int) []byte {
		return append(binary.LittleEndian.AppendUint32([]byte{0x50, 0x2a, 0x4d, 0x18}, uint32(n)), make([]byte, n)...)
	}
	for name, tt := range map[string]struct {
		packed []byte
		raw    uint32
	}{
		"more than the header says":          {honest, block - 1},
		"less than the header says":          {e.EncodeAll(make([]byte, block-1), nil), block},
		"no content size, many large blocks": {zstdFrame(window(20), 15_000, 128<<10), block},
		"one byte beyond":                    {append(zstdFrame(window(17), 1, block), zstdFrame(window(17), 1, 1)...), block},
		"many frames":                        {bytes.Repeat(zstdFrame(window(17), 1, block), 4_000), block},
		"huge window":                        {zstdFrame(window(41), 1, block), block},
		"huge window, few bytes":             {zstdFrame(window(30), 1, 16), 16},
		"huge content size":                  {zstdFrame([]byte{0xe0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, 1, block), block},
		"content size of 1 GiB":              {zstdFrame([]byte{0xa0, 0, 0, 0, 0x40}, 8_192, 128<<10), block},
		"empty blocks without an end":        {zstdFrame(window(17), 15_000, 0)[:60_000-4], block},
		"empty blocks alone":                 {zstdFrame(window(17), 15_000, 0), block},
		"empty frames alone":                 {bytes.Repeat(zstdFrame(window(17), 1, 0), 5_000), block},
		"a dictionary":                       {zstdFrame([]byte{0x23, 1, 2, 3, 4, 16}, 1, 16), 16},
		"skippable frames alone":             {bytes.Repeat(skippable(0), 5_000), block},
		"a skippable frame beyond its end":   {skippable(16)[:20], block},
		"not zstd":                           {make([]byte, 100), block},
		"nothing":                            {nil, block},
		"a claim above the block":            {honest, 16 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := transfertest.Links(t, tcp.Signed, 1, nil)
			packed := tt.packed[:min(len(tt.packed), block)]
			done := make(chan struct{})
			go func() {
				defer close(done)
				f := tcp.NewBlock(block, 0)
				f.SetLen(copy(f.Buffer(), packed))
				c := a.Conns()[0]
				_ = c.WriteFrame(tcp.Header{Kind: tcp.Data, Flags: tcp.Compressed, Raw: tt.raw}, f)
				_ = c.WriteEnd(tcp.Account{Bytes: uint64(tt.raw), Frames: 1, StreamBytes: uint64(tt.raw), StreamFrames: 1})
			}()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			sink := newSink()
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Timeout())
			defer cancel()
			_, err := transfer.Receive(ctx, b, sink, transfer.Options{Block: block, Buffer: 4 * block, CompressThreads: 1}, nil)
			runtime.ReadMemStats(&after)
			<-done
			require.ErrorIs(t, err, transfer.ErrTotalsMismatch)
			require.ErrorContains(t, err, "frame 0 does not decompress to")
			stored, committed := sink.Stored()
			require.False(t, committed)
			require.Empty(t, stored)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20), "memory in all, with that of the receiver")
		})
	}
}

// TestFramesOfOtherSizesPass expects that frames of different sizes and levels decompress in place, and that
// a frame with one byte more is refused.
func TestFramesOfOtherSizesPass(t *testing.T) {
	t.Parallel()
	const block = 64 << 10
	decode := transfer.NewDecoder(transfer.Options{Block: block, CompressThreads: 1})
	for _, n := range []int{1, 100, block / 2, block - 1, block} {
		for _, level := range []zstd.EncoderLevel{zstd.SpeedFastest, zstd.SpeedBestCompression} {
			e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderCRC(false))
			require.NoError(t, err)
			for _, data := range [][]byte{transfertest.Text(n), transfertest.Random(n), make([]byte, n)} {
				room := make([]byte, block)
				got, err := decode(e.EncodeAll(data, nil), room[:0:n])
				require.NoError(t, err)
				require.Equal(t, data, got)
				require.Same(t, &room[0], &got[0], "in place")
				_, err = decode(e.EncodeAll(append(data, 1), nil), room[:0:n])
				require.Error(t, err)
			}
		}
	}
}
