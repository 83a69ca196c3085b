package transfer

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/blockdev"
	"zxfer/pkg/wire"
)

// zeroDevice is a target that holds zeros, and is only asked to.
type zeroDevice struct{}

func (zeroDevice) ReadAt(p []byte, _ int64) (int, error)      { clear(p); return len(p), nil }
func (zeroDevice) WriteAt(p []byte, _ int64) (int, error)     { panic("nothing is written") }
func (zeroDevice) Zero(int64, int64) error                    { return nil }
func (zeroDevice) NextData(int64) (start, end int64, _ error) { return 0, 1 << 62, nil }
func (zeroDevice) Sync() error                                { return nil }
func (zeroDevice) DropCache() error                           { return nil }
func (zeroDevice) Commit() error                              { return nil }
func (zeroDevice) Close() error                               { return nil }
func (zeroDevice) Name() string                               { return "zeros" }

// On a wire without tags, a frame whose flag or bytes changed does not match
// its mark, and nothing of it is stored.
func TestChangedFramesWithoutTags(t *testing.T) {
	t.Parallel()
	const block = 64 << 10
	// A block that reads as hashes, so that it passes for a run of zeros.
	data := bytes.Repeat([]byte("x"), block)
	frame := func() *wire.Block {
		b := wire.NewBlock(block+wire.TrailSize, 0)
		copy(b.Room(), data)
		trail(b, block, []BlockSum{{1}}, blockdev.Mark(data))
		return b
	}
	for name, c := range map[string]struct {
		flags  wire.Flags
		change func(p []byte)
	}{
		"a byte of data":       {wire.Summed, func(p []byte) { p[77]++ }},
		"a byte of the mark":   {wire.Summed, func(p []byte) { p[len(p)-1]++ }},
		"data shown as zeros":  {wire.Summed | wire.Zero, func([]byte) {}},
		"data shown as packed": {wire.Summed | wire.Compressed, func([]byte) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const size = (block/wire.SumSize + 1) * block
			opt := DeviceOptions{Options: Options{Block: block}}.filled()
			pool := &blockPool{size: block + wire.TrailSize}
			r := &deviceReceiving{opt: opt, pool: pool, queue: make(chan devicePiece, 1)}
			r.store = newStore(zeroDevice{}, nil, size, opt, pool)
			r.expand = newEffort(StageExpand, r.store.workers)
			b := frame()
			c.change(b.Payload())
			r.queue <- devicePiece{wire.Header{Kind: wire.Data, Flags: c.flags, Raw: block}, b}
			close(r.queue)
			require.ErrorIs(t, r.writer(t.Context(), 0), wire.ErrTampered)
			require.Zero(t, r.store.write.bytes.Load())
		})
	}
}
