package transfer_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
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
		most float64 // of the size, on the wire
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
						require.Equal(t, o.sent.Digest, o.received.Digest, "the digest is of the stream, not of what crossed")
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

func TestCompressionMustBeKnown(t *testing.T) {
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
			requireNothing(t, sink, nil)
		})
	}
}
