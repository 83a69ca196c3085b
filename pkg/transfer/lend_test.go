package transfer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transport/tcp"
)

// unreadSink is the write end of a pipe whose reader is the test.
type unreadSink struct {
	*os.File
	refuse  error
	splices bool
}

func (s *unreadSink) Name() string                 { return "unread sink" }
func (s *unreadSink) Pipe() *os.File               { return s.File }
func (s *unreadSink) Reads() bool                  { return !s.splices }
func (s *unreadSink) Bypassable() int64            { return math.MaxInt64 }
func (s *unreadSink) Bypassed(int64)               {}
func (s *unreadSink) Check([]byte) error           { return s.refuse }
func (s *unreadSink) Explain(err error) error      { return err }
func (s *unreadSink) Commit(context.Context) error { return s.Close() }
func (s *unreadSink) Abort(error) error            { return s.Close() }

// lendingPipe returns a pipe of 1 MiB and a writer that lends blocks of 128 KiB to it.
func lendingPipe(t *testing.T) (*os.File, *unreadSink, *writer) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	require.True(t, GrowPipe(w))
	sink := &unreadSink{File: w}
	out := newWriter(sink, Options{Block: 128 << 10}.Filled())
	require.NotNil(t, out.lend)
	t.Cleanup(out.ring.unmap)
	return r, sink, out
}

// pass passes a block of n bytes with the value v to the writer.
func pass(t *testing.T, w *writer, n int, v byte) {
	t.Helper()
	b := w.ring.get()
	b.SetLen(copy(b.Buffer(), bytes.Repeat([]byte{v}, n)))
	require.NoError(t, w.pass(b))
}

// TestSplicingConsumerGetsItsOwnPages expects that a consumer that splices the pipe, as pv does, keeps its data: zxfer lends
// no block to it.
func TestSplicingConsumerGetsItsOwnPages(t *testing.T) {
	t.Parallel()
	const block = 128 << 10
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	require.True(t, GrowPipe(w))
	later, in, err := os.Pipe()
	require.NoError(t, err)
	defer later.Close()
	defer in.Close()
	require.True(t, GrowPipe(in))
	out := newWriter(&unreadSink{File: w, splices: true}, Options{Block: block}.Filled())
	defer out.ring.unmap()
	require.Nil(t, out.lend)
	pass(t, out, block, 1)
	for n := int64(0); n < block; {
		k, err := unix.Splice(int(r.Fd()), nil, int(in.Fd()), nil, block, 0)
		require.NoError(t, err)
		n += k
	}
	pass(t, out, block, 2) // reuses the block
	got := make([]byte, block)
	_, err = io.ReadFull(later, got)
	require.NoError(t, err)
	require.Equal(t, bytes.Repeat([]byte{1}, block), got)
}

// TestLentBlocksAreReusedOnlyAfterReading expects that a block returns to the ring only after the
// consumer has read its last byte.
func TestLentBlocksAreReusedOnlyAfterReading(t *testing.T) {
	t.Parallel()
	const block = 128 << 10
	r, _, w := lendingPipe(t)
	for v := range byte(4) {
		pass(t, w, block, v)
	}
	require.Empty(t, w.ring.free, "nothing was read")
	require.Len(t, w.lend.lent, 4)

	got := make([]byte, 2*block-1)
	_, err := io.ReadFull(r, got)
	require.NoError(t, err)
	pass(t, w, block, 4)
	require.Len(t, w.ring.free, 1, "only the first block was read to its end")

	w.ring.free[0].Buffer()[0] = 77 // the consumer must not see this
	require.NoError(t, w.sink.Commit(t.Context()))
	rest, err := io.ReadAll(r)
	require.NoError(t, err)
	var want []byte
	for v := range byte(5) {
		want = append(want, bytes.Repeat([]byte{v}, block)...)
	}
	require.True(t, bytes.Equal(want, append(got, rest...)))
}

// TestUnreadBytesOutliveTheRing expects that the consumer reads the right bytes even if zxfer has
// released its memory, as after an abort.
func TestUnreadBytesOutliveTheRing(t *testing.T) {
	t.Parallel()
	const block = 128 << 10
	r, _, w := lendingPipe(t)
	for v := range byte(4) {
		pass(t, w, block, v)
	}
	require.NoError(t, w.sink.Abort(nil))
	w.ring.unmap()
	next := newRing(4<<20, block, 0) // probably at the same addresses
	defer next.unmap()
	for range 32 {
		b := next.get()
		copy(b.Buffer(), bytes.Repeat([]byte{99}, block))
	}
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Len(t, got, 4*block)
	for v := range byte(4) {
		require.True(t, bytes.Equal(bytes.Repeat([]byte{v}, block), got[int(v)*block:][:block]), "block %d", v)
	}
}

// TestSmallPiecesAreCopied expects that small pieces do not hold whole blocks.
func TestSmallPiecesAreCopied(t *testing.T) {
	t.Parallel()
	const block = 128 << 10
	r, _, w := lendingPipe(t)
	for v := range byte(8) {
		pass(t, w, block/2-1, v)
	}
	require.Empty(t, w.lend.lent)
	require.Len(t, w.ring.free, 1, "the same block each time")
	require.NoError(t, w.sink.Commit(t.Context()))
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	for v := range byte(8) {
		require.True(t, bytes.Equal(bytes.Repeat([]byte{v}, block/2-1), got[int(v)*(block/2-1):][:block/2-1]), "piece %d", v)
	}
}

// TestRefusedBlocksAreNotLent expects that the pipe gets no byte that the sink refuses.
func TestRefusedBlocksAreNotLent(t *testing.T) {
	t.Parallel()
	r, sink, w := lendingPipe(t)
	sink.refuse = errors.New("not planned")
	b := w.ring.get()
	b.SetLen(len(b.Buffer()))
	require.ErrorIs(t, w.pass(b), sink.refuse)
	require.NoError(t, w.sink.Abort(nil))
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Empty(t, got)
}

// TestHeapBlocksAreCopied expects that blocks on the heap are not lent, because the runtime could
// reuse their memory while the pipe refers to it.
func TestHeapBlocksAreCopied(t *testing.T) {
	t.Parallel()
	r, _, w := lendingPipe(t)
	w.ring.memory.heap = true // as if the kernel had refused to map memory
	want := bytes.Repeat([]byte("abcdefg"), 18_000)
	b := w.ring.get()
	b.SetLen(copy(b.Buffer(), want))
	require.NoError(t, w.pass(b))
	require.Empty(t, w.lend.lent)
	require.NoError(t, w.sink.Commit(t.Context()))
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
}

// TestInterruptedLending expects that a full pipe does not hold up an abort.
func TestInterruptedLending(t *testing.T) {
	t.Parallel()
	_, sink, w := lendingPipe(t)
	failed := make(chan error, 1)
	go func() {
		for {
			b := w.ring.get()
			b.SetLen(len(b.Buffer()))
			if err := w.pass(b); err != nil {
				failed <- err
				return
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Timeout())
	defer cancel()
	require.NoError(t, sink.Close())
	select {
	case err := <-failed:
		require.ErrorIs(t, err, tcp.ErrPipe)
	case <-ctx.Done():
		t.Fatal("the writer still waits")
	}
}
