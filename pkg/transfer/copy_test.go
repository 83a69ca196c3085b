package transfer_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
)

func TestCopy(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, tailSize, 5<<20 + 3} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			src, sink := transfertest.NewSource(transfertest.Random(size)), newSink()
			src.Chunk = -1
			calls := 0
			res, err := transfer.Copy(context.Background(), src, sink, transfer.Options{Block: 64 << 10}, func(transfer.Progress) { calls++ })
			require.NoError(t, err)
			got, committed := sink.Stored()
			require.True(t, committed)
			require.True(t, bytes.Equal(transfertest.Random(size), got))
			require.EqualValues(t, size, res.Bytes)
			require.Positive(t, calls)
			sum := xxh3.Hash128(got).Bytes()
			require.Equal(t, hex.EncodeToString(sum[:]), res.Digest)
		})
	}
	t.Run("failing source", func(t *testing.T) {
		t.Parallel()
		src, sink := transfertest.NewSource(transfertest.Random(1000)), newSink()
		src.Err = errors.New("the disk fell off")
		_, err := transfer.Copy(context.Background(), src, sink, transfer.Options{}, nil)
		require.Equal(t, src.Err, err)
		requireNoEffect(t, sink, transfertest.Random(1000))
	})
	t.Run("stalls", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			src, sink := transfertest.NewSource(transfertest.Random(1000)), newSink()
			src.Hang = true
			_, err := transfer.Copy(context.Background(), src, sink, transfer.Options{Stall: time.Minute}, nil)
			require.ErrorIs(t, err, transfer.ErrStall)
			require.ErrorContains(t, err, "memory source sent no data")
			requireNoEffect(t, sink, transfertest.Random(1000))
		})
	})
}
