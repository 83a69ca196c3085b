package device

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// zeroDevice is a target of zeros that must not be written to.
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

// TestChangedFramesWithoutTags expects that if a frame's flag or bytes change on an unauthenticated
// link, it does not match its mark and is not stored.
func TestChangedFramesWithoutTags(t *testing.T) {
	t.Parallel()
	const block = 64 << 10
	// The block consists of sums, so it could pass for a run of zeros.
	data := bytes.Repeat([]byte("x"), block)
	newBlock := func() *tcp.Block {
		b := tcp.NewBlock(block+tcp.TrailerSize, 0)
		copy(b.Buffer(), data)
		appendTrailer(b, block, []Sum{{1}}, MarkOf(data))
		return b
	}
	for name, c := range map[string]struct {
		flags  tcp.Flags
		change func(p []byte)
	}{
		"a byte of data":            {tcp.Summed, func(p []byte) { p[77]++ }},
		"a byte of the mark":        {tcp.Summed, func(p []byte) { p[len(p)-1]++ }},
		"data marked as zeros":      {tcp.Summed | tcp.Zero, func([]byte) {}},
		"data marked as compressed": {tcp.Summed | tcp.Compressed, func([]byte) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const size = (block/tcp.SumSize + 1) * block
			opt := Options{Options: transfer.Options{Block: block}}.filled()
			pool := &blockPool{size: block + tcp.TrailerSize}
			r := &receiver{opt: opt, pool: pool, queue: make(chan frame, 1), decode: transfer.NewDecoder(opt.Options)}
			r.store = newStore(zeroDevice{}, nil, size, opt, pool)
			r.expand = newStageMeter(transfer.StageExpand, r.store.workers)
			b := newBlock()
			c.change(b.Payload())
			r.queue <- frame{tcp.Header{Kind: tcp.Data, Flags: c.flags, Raw: block}, b}
			close(r.queue)
			require.ErrorIs(t, r.writer(t.Context(), 0), tcp.ErrTampered)
			require.Zero(t, r.store.write.bytes.Load())
		})
	}
}

// failingSync is a target with a Sync that the test provides.
type failingSync struct {
	zeroDevice
	sync func() error
}

func (d *failingSync) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (d *failingSync) Sync() error                            { return d.sync() }

// countingJournal is a journal that counts records.
type countingJournal struct{ blocks, removed int }

func (j *countingJournal) Stored() []Sum { return nil }
func (j *countingJournal) Remove() error { j.removed++; return nil }
func (j *countingJournal) Close() error  { return nil }

func (j *countingJournal) Add(blocks iter.Seq2[int64, Sum]) error {
	for range blocks {
		j.blocks++
	}
	return nil
}

func testStore(t *testing.T, dst blockTarget, j blockJournal, blocks int64) (*store, Options) {
	t.Helper()
	const block = 64 << 10
	opt := Options{Options: transfer.Options{Block: block}}.filled()
	s := newStore(dst, j, blocks*block, opt, &blockPool{size: block + tcp.TrailerSize})
	ctx, fail := context.WithCancelCause(t.Context())
	s.start(ctx, func(err error) { fail(err) })
	t.Cleanup(func() { fail(nil) })
	return s, opt
}

// TestFailedSyncEndsJournal expects no journal records after a failed sync. The kernel
// reports the failure once, and it may concern any block written by then.
func TestFailedSyncEndsJournal(t *testing.T) {
	t.Parallel()
	broken := errors.New("input/output error")
	dst, j := &failingSync{}, &countingJournal{}
	s, opt := testStore(t, dst, j, 20)
	first := true
	dst.sync = func() error {
		if !first {
			return nil
		}
		first = false
		require.NoError(t, s.put(0, 6, make([]byte, opt.Block), Sum{6}, Mark{}), "during the sync")
		return broken
	}
	require.NoError(t, s.put(0, 5, make([]byte, opt.Block), Sum{5}, Mark{}))
	require.ErrorIs(t, s.sync(), broken)
	_, err := s.abandon()
	require.ErrorIs(t, err, broken)
	require.Zero(t, j.blocks, "blocks that may be lost are not recorded")
}

// TestCorruptBlockEndsJournalOnce expects that several corrupt blocks, found while others are
// recorded, end the journal once.
func TestCorruptBlockEndsJournalOnce(t *testing.T) {
	t.Parallel()
	const blocks = 400
	dst, j := &failingSync{sync: func() error { time.Sleep(time.Millisecond); return nil }}, &countingJournal{}
	s, opt := testStore(t, dst, j, blocks)
	for i := int64(1); i < blocks-2; i++ { // it reads as zeros
		require.NoError(t, s.put(0, i, make([]byte, opt.Block), Sum{}, Mark{1}))
		if i%8 == 0 {
			require.NoError(t, s.sync())
		}
	}
	require.NoError(t, s.sync())
	_, err := s.abandon()
	require.NoError(t, err)
	require.Equal(t, 1, j.removed)
}

// replacedTarget is a target that was replaced, so Commit fails.
type replacedTarget struct {
	zeroDevice
	closed int
}

func (d *replacedTarget) Commit() error { return errors.New("it was replaced") }
func (d *replacedTarget) Close() error  { d.closed++; return nil }

// closableJournal is a journal that records Close.
type closableJournal struct {
	countingJournal
	closed int
}

func (j *closableJournal) Close() error { j.closed++; return nil }

// TestFailedCommitReleasesTarget expects that a target that cannot be committed is
// released for another attempt in the same process.
func TestFailedCommitReleasesTarget(t *testing.T) {
	t.Parallel()
	dst, j := &replacedTarget{}, &closableJournal{}
	s, _ := testStore(t, dst, j, 20)
	require.NoError(t, s.zeros(0, 0, make([]Sum, 20)))
	_, err := s.finish(t.Context())
	require.NoError(t, err)
	require.ErrorContains(t, s.commit(), "replaced")
	require.Equal(t, 1, dst.closed)
	require.Equal(t, 1, j.closed)
	require.Zero(t, j.removed)
}
