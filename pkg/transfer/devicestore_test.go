package transfer

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"
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

// On a wire without tags, data that was turned into a run of zeros with the
// data's hash is found when it is read back.
func TestDataTurnedIntoZeros(t *testing.T) {
	t.Parallel()
	const size = 64 << 10
	data := bytes.Repeat([]byte("x"), size)
	for name, doubt := range map[string]bool{"plain": true, "authenticated": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opt := DeviceOptions{Options: Options{Block: size}}.filled()
			pool := &blockPool{size: size}
			s := newStore(zeroDevice{}, nil, size, opt, pool)
			s.doubt = doubt
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			s.start(ctx, cancel)
			require.NoError(t, s.zeros(0, 0, []BlockSum{s.sum(0, data)}))
			_, err := s.finish(ctx)
			if doubt {
				require.ErrorIs(t, err, ErrCorrupt)
				require.ErrorContains(t, err, "came as zeros")
				return
			}
			require.NoError(t, err, "there the frame's tag vouches for the flag")
		})
	}
}
