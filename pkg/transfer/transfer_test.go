package transfer_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/transport/tcp"
)

var modes = []tcp.Mode{tcp.Signed, tcp.TLS, tcp.Plain}

func TestStreamsArriveComplete(t *testing.T) {
	t.Parallel()
	const block = 64 << 10
	sizes := []int{0, 1, tailSize - 1, tailSize, tailSize + 1, block - 1, block, block + 1, 9<<20 + 7}
	for _, mode := range modes {
		for _, streams := range []int{1, 4} {
			for _, size := range sizes {
				for _, chunk := range []int{0, -1} {
					t.Run(fmt.Sprintf("%s/%d/%d/chunk%d", mode, streams, size, chunk), func(t *testing.T) {
						t.Parallel()
						want := transfertest.Random(size)
						src, sink := transfertest.NewSource(want), newSink()
						src.Chunk = chunk
						a, b := transfertest.Links(t, mode, streams, nil)
						o := move(t, a, b, src, sink, transfer.Options{Block: block, Buffer: 1 << 20})
						require.NoError(t, o.sendErr)
						require.NoError(t, o.receiveErr)
						got, committed := sink.Stored()
						require.True(t, committed)
						require.True(t, bytes.Equal(want, got), "%d bytes instead of %d, or other ones", len(got), len(want))
						sum := xxh3.Hash128(want).Bytes()
						require.Equal(t, hex.EncodeToString(sum[:]), o.sent.Digest)
						require.Equal(t, o.sent.Digest, o.received.Digest)
						require.EqualValues(t, size, o.sent.Bytes)
						require.EqualValues(t, size, o.received.Bytes)
						require.Equal(t, o.sent.Frames, o.received.Frames)
						require.Greater(t, o.sent.WireBytes, int64(size))
					})
				}
			}
		}
	}
}

// trickle is a source that yields single bytes until its hold is released.
type trickle struct {
	*transfertest.Source
	*hold
}

func (s *trickle) Read(p []byte) (int, error) {
	select {
	case <-s.open:
	default:
		time.Sleep(time.Millisecond)
		p = p[:1]
	}
	return s.Source.Read(p)
}

// TestProgressIsReported slows the source until both hosts have reported twice and the receiver has
// reported bytes. It expects that a slow stream does not wait for a full block.
func TestProgressIsReported(t *testing.T) {
	t.Parallel()
	a, b := transfertest.Links(t, tcp.Signed, 2, nil)
	h := newHold(t)
	src, sink := &trickle{Source: transfertest.NewSource(transfertest.Random(1 << 20)), hold: h}, newSink()
	hangs := time.AfterFunc(testenv.Timeout(), h.release)
	var mu sync.Mutex
	var sent, received []transfer.Progress
	report := func(to *[]transfer.Progress) func(transfer.Progress) {
		return func(p transfer.Progress) {
			mu.Lock()
			defer mu.Unlock()
			if *to = append(*to, p); len(sent) >= 2 && len(received) >= 2 && received[len(received)-1].Bytes > 0 {
				h.release()
			}
		}
	}
	done := make(chan error, 1)
	go func() {
		_, err := transfer.Receive(context.Background(), b, sink, transfer.Options{}, report(&received))
		done <- err
	}()
	res, err := transfer.Send(context.Background(), src, a, transfer.Options{}, report(&sent))
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.True(t, hangs.Stop(), "the receiver reports no bytes of a slow stream")
	for name, reports := range map[string][]transfer.Progress{"sender": sent, "receiver": received} {
		require.GreaterOrEqual(t, len(reports), 3, name)
		last := reports[len(reports)-1]
		require.EqualValues(t, 1<<20, last.Bytes, name)
		require.Less(t, reports[1].Bytes, last.Bytes, name)
		require.Equal(t, 2, last.Network.Streams, name)
		require.Positive(t, last.Network.RTT, name)
		require.NotEmpty(t, last.Network.Congestion, name)
		for _, s := range last.Stages {
			require.Equal(t, last.Elapsed, s.Busy+s.WaitIn+s.WaitOut, "%s: %s", name, s.Name)
		}
	}
	require.Equal(t, sent[len(sent)-1], res.Progress)
}

func TestFailuresReachOtherHost(t *testing.T) {
	t.Parallel()
	failure := errors.New("the disk fell off")
	stream := transfertest.Random(3 << 20)
	for _, mode := range modes {
		for _, streams := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s/%d/source", mode, streams), func(t *testing.T) {
				t.Parallel()
				a, b := transfertest.Links(t, mode, streams, nil)
				src, sink := transfertest.NewSource(stream), newSink()
				src.Err = failure
				o := move(t, a, b, src, sink, transfer.Options{})
				require.ErrorIs(t, o.sendErr, failure)
				require.Equal(t, failure, o.sendErr, "the source's error, not wrapped")
				var peer *transfer.PeerError
				require.ErrorAs(t, o.receiveErr, &peer)
				require.Contains(t, peer.Text, failure.Error())
				requireNoEffect(t, sink, stream)
				got, _ := sink.Stored()
				require.Equal(t, len(stream)-tailSize, len(got), "data received before the failure is kept for a resume")
			})
			t.Run(fmt.Sprintf("%s/%d/sink full", mode, streams), func(t *testing.T) {
				t.Parallel()
				a, b := transfertest.Links(t, mode, streams, nil)
				src, sink := transfertest.NewSource(transfertest.Random(40<<20)), newSink()
				sink.Full = 1 << 20
				o := move(t, a, b, src, sink, transfer.Options{Buffer: 2 << 20})
				require.ErrorIs(t, o.receiveErr, errFull)
				var peer *transfer.PeerError
				require.ErrorAs(t, o.sendErr, &peer)
				require.Contains(t, peer.Text, errFull.Error())
				requireNoEffect(t, sink, stream)
			})
			t.Run(fmt.Sprintf("%s/%d/sink says why only when aborted", mode, streams), func(t *testing.T) {
				t.Parallel()
				a, b := transfertest.Links(t, mode, streams, nil)
				sink := newSink()
				sink.Full, sink.AbortErr = 1<<20, failure
				o := move(t, a, b, transfertest.NewSource(stream), sink, transfer.Options{})
				require.ErrorIs(t, o.receiveErr, failure)
				require.ErrorContains(t, o.sendErr, failure.Error())
			})
			t.Run(fmt.Sprintf("%s/%d/commit", mode, streams), func(t *testing.T) {
				t.Parallel()
				a, b := transfertest.Links(t, mode, streams, nil)
				sink := newSink()
				sink.CommitErr = failure
				o := move(t, a, b, transfertest.NewSource(stream), sink, transfer.Options{})
				require.ErrorIs(t, o.receiveErr, failure)
				require.NoError(t, sink.Aborted(), "a sink whose commit failed is released")
				var peer *transfer.PeerError
				require.ErrorAs(t, o.sendErr, &peer)
				require.Contains(t, peer.Text, failure.Error())
			})
			t.Run(fmt.Sprintf("%s/%d/before it began", mode, streams), func(t *testing.T) {
				t.Parallel()
				a, b := transfertest.Links(t, mode, streams, nil)
				go a.Abort(failure)
				sink := newSink()
				_, err := transfer.Receive(context.Background(), b, sink, transfer.Options{}, nil)
				var peer *transfer.PeerError
				require.ErrorAs(t, err, &peer)
				require.Equal(t, failure.Error(), peer.Text)
				requireNoEffect(t, sink, nil)
			})
		}
	}
}

// TestSlowSinkBoundsMemory expects limited memory for a slow sink. It measures the live heap, which
// does not depend on when the collector runs.
func TestSlowSinkBoundsMemory(t *testing.T) { //nolint:paralleltest // measures the heap
	a, b := transfertest.Links(t, tcp.Signed, 2, nil)
	const buffer = 4 << 20
	stream := transfertest.Random(64 << 20)
	sink := newSink()
	sink.Drop, sink.Pause = true, 10*time.Millisecond
	var most uint64
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := transfer.Receive(context.Background(), b, sink, transfer.Options{Buffer: buffer}, func(transfer.Progress) {
			runtime.GC()
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc)
		})
		require.NoError(t, err)
	}()
	_, err := transfer.Send(context.Background(), transfertest.NewSource(stream), a, transfer.Options{Buffer: buffer}, nil)
	require.NoError(t, err)
	<-done
	// Two rings, a block for each goroutine, and a reserve.
	require.Less(t, int64(most)-int64(before.HeapAlloc), int64(2*buffer+8<<20+8<<20))
}

func TestCancelLeavesNothing(t *testing.T) { //nolint:paralleltest // counts goroutines
	for _, mode := range modes {
		for _, who := range []string{"sender", "receiver", "both"} {
			t.Run(fmt.Sprintf("%s/%s", mode, who), func(t *testing.T) {
				check := requireClean(t)
				a, b := transfertest.Links(t, mode, 3, nil)
				src, sink := transfertest.NewSource(transfertest.Random(5<<20)), newSink()
				src.Hang = true
				sctx, scancel := context.WithCancel(context.Background())
				rctx, rcancel := context.WithCancel(context.Background())
				defer scancel()
				defer rcancel()
				afterStored(sink, func() {
					if who != "receiver" {
						scancel()
					}
					if who != "sender" {
						rcancel()
					}
				})
				o := moveWithContexts(t, sctx, rctx, a, b, src, sink, transfer.Options{})
				require.Error(t, o.sendErr)
				require.Error(t, o.receiveErr)
				if who != "receiver" {
					require.ErrorIs(t, o.sendErr, context.Canceled)
				}
				if who != "sender" {
					require.ErrorIs(t, o.receiveErr, context.Canceled)
				}
				requireNoEffect(t, sink, transfertest.Random(5<<20))
				check()
			})
		}
	}
}

func TestDeadPeer(t *testing.T) { //nolint:paralleltest // counts goroutines
	for _, mode := range modes {
		for _, who := range []string{"sender", "receiver"} {
			t.Run(fmt.Sprintf("%s/%s", mode, who), func(t *testing.T) {
				check := requireClean(t)
				a, b := transfertest.Links(t, mode, 3, nil)
				src, sink := transfertest.NewSource(transfertest.Random(5<<20)), newSink()
				src.Chunk, src.Hang = 64<<10, true
				afterStored(sink, func() {
					if who == "sender" {
						_ = a.Close()
					} else {
						_ = b.Close()
					}
				})
				o := move(t, a, b, src, sink, transfer.Options{Block: 64 << 10})
				require.ErrorIs(t, o.sendErr, tcp.ErrConnectionLost)
				require.ErrorIs(t, o.receiveErr, tcp.ErrConnectionLost)
				requireNoEffect(t, sink, transfertest.Random(5<<20))
				check()
			})
		}
	}
}

// TestBandwidthLimit expects that a transfer never exceeds its limit. Its delay depends on the machine,
// so TestMetersOfACopy checks the time of the limit.
func TestBandwidthLimit(t *testing.T) {
	t.Parallel()
	const size, limit = 2 << 20, 4 << 20
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			a, b := transfertest.Links(t, mode, 3, nil)
			o := move(t, a, b, transfertest.NewSource(transfertest.Random(size)), newSink(), transfer.Options{BandLimit: limit})
			require.NoError(t, o.sendErr)
			require.NoError(t, o.receiveErr)
			require.GreaterOrEqual(t, o.sent.Elapsed, time.Second*size/limit)
			at := slices.IndexFunc(o.sent.Stages, func(s transfer.Stage) bool { return s.Name == transfer.StageLimit })
			require.Positive(t, at)
			require.EqualValues(t, size, o.sent.Stages[at].Bytes)
		})
	}
}
