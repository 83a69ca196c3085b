package transfer_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/wire"
)

var modes = []wire.Mode{wire.Signed, wire.TLS, wire.Plain}

func TestStreamsArriveWhole(t *testing.T) {
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

func TestProgressIsReported(t *testing.T) {
	t.Parallel()
	a, b := transfertest.Links(t, wire.Signed, 2, nil)
	src, sink := transfertest.NewSource(transfertest.Random(1<<20)), newSink()
	src.Chunk, src.Pause = 16<<10, 20*time.Millisecond
	var sent, received []transfer.Progress
	done := make(chan error, 1)
	go func() {
		_, err := transfer.Receive(context.Background(), b, sink, transfer.Options{}, func(p transfer.Progress) { received = append(received, p) })
		done <- err
	}()
	res, err := transfer.Send(context.Background(), src, a, transfer.Options{}, func(p transfer.Progress) { sent = append(sent, p) })
	require.NoError(t, err)
	require.NoError(t, <-done)
	for name, reports := range map[string][]transfer.Progress{"sender": sent, "receiver": received} {
		require.GreaterOrEqual(t, len(reports), 3, name)
		last := reports[len(reports)-1]
		require.EqualValues(t, 1<<20, last.Bytes, name)
		require.Less(t, reports[0].Bytes, last.Bytes, "%s: a trickle must go on at once", name)
		require.Equal(t, 2, last.Network.Streams, name)
		require.Positive(t, last.Network.RTT, name)
		require.NotEmpty(t, last.Network.Congestion, name)
		for _, s := range last.Stages {
			require.Equal(t, last.Elapsed, s.Busy+s.WaitIn+s.WaitOut, "%s: %s", name, s.Name)
		}
	}
	require.Equal(t, sent[len(sent)-1], res.Progress)
	require.Equal(t, transfer.LimitSource, transfer.LimitedBy(res.Stages, received[len(received)-1].Stages, res.Network))
}

func TestFailuresReachTheOtherEnd(t *testing.T) {
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
				require.Equal(t, failure, o.sendErr, "the source's own error, nothing around it")
				var peer *transfer.PeerError
				require.ErrorAs(t, o.receiveErr, &peer)
				require.Contains(t, peer.Text, failure.Error())
				requireNothing(t, sink, stream)
				got, _ := sink.Stored()
				require.Equal(t, len(stream)-tailSize, len(got), "what came before the failure is kept for a resume")
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
				requireNothing(t, sink, stream)
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
				requireNothing(t, sink, nil)
			})
		}
	}
}

func TestLongCommitIsNoStall(t *testing.T) {
	t.Parallel()
	a, b := transfertest.Links(t, wire.Signed, 2, nil)
	sink := newSink()
	sink.Slow = 13 * time.Second // twice the patience of a machine that may be busy
	o := move(t, a, b, transfertest.NewSource(transfertest.Random(1000)), sink, transfer.Options{Stall: 6 * time.Second})
	require.NoError(t, o.receiveErr)
	require.NoError(t, o.sendErr, "the receiver's sign of life did not count")
}

func TestStallNamesTheSide(t *testing.T) {
	t.Parallel()
	opt := transfer.Options{Stall: 3 * time.Second, Buffer: 1 << 20} // a busy machine may move nothing for a second
	for _, mode := range modes {
		t.Run(string(mode)+"/source", func(t *testing.T) {
			t.Parallel()
			a, b := transfertest.Links(t, mode, 2, nil)
			src, sink := transfertest.NewSource(transfertest.Random(1000)), newSink()
			src.Hang = true
			o := move(t, a, b, src, sink, opt)
			require.ErrorIs(t, o.sendErr, transfer.ErrStall)
			require.ErrorContains(t, o.sendErr, "memory source gave nothing")
			require.NotErrorIs(t, o.sendErr, wire.ErrCut)
			require.Error(t, o.receiveErr)
			requireNothing(t, sink, transfertest.Random(1000))
		})
		t.Run(string(mode)+"/target", func(t *testing.T) {
			t.Parallel()
			a, b := transfertest.Links(t, mode, 2, nil)
			stream := transfertest.Random(64 << 20)
			src, sink := transfertest.NewSource(stream), newSink()
			sink.HangAfter = 100
			o := move(t, a, b, src, sink, opt)
			require.Error(t, o.sendErr)
			require.ErrorIs(t, o.receiveErr, transfer.ErrStall)
			require.ErrorContains(t, o.receiveErr, "memory sink took nothing")
			requireNothing(t, sink, stream)
		})
	}
}

// stubborn ends hang for good: they do not even end when they are told to.
type (
	stubbornSource struct {
		*transfertest.Source
		free chan struct{}
	}
	stubbornSink struct {
		*memorySink
		free chan struct{}
	}
)

func (s stubbornSource) Close() error { <-s.free; return s.Source.Close() }

func (s stubbornSink) Abort(cause error) error { <-s.free; return s.memorySink.Abort(cause) }

// The other end hears of them nevertheless, and who it was.
func TestAnEndThatHangsForGoodIsTold(t *testing.T) {
	t.Parallel()
	opt := transfer.Options{Stall: 3 * time.Second, Buffer: 1 << 20} // a busy machine may move nothing for a second
	for _, who := range []string{"memory source gave nothing", "memory sink took nothing"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			free := make(chan struct{})
			source, sink := transfertest.NewSource(transfertest.Random(8<<20)), newSink()
			a, b := transfertest.Links(t, wire.Signed, 2, nil)
			sent, received := make(chan error, 1), make(chan error, 1)
			own, other := sent, received
			var src transfer.Source = source
			var dst transfer.Sink = sink
			if strings.HasPrefix(who, "memory sink") {
				sink.HangAfter, dst = 100, stubbornSink{sink, free}
				own, other = received, sent
			} else {
				source.Hang, src = true, stubbornSource{source, free}
			}
			go func() { _, err := transfer.Send(context.Background(), src, a, opt, nil); sent <- err }()
			go func() { _, err := transfer.Receive(context.Background(), b, dst, opt, nil); received <- err }()
			select {
			case err := <-other:
				require.ErrorAs(t, err, new(*transfer.PeerError))
				require.ErrorContains(t, err, who)
			case <-time.After(10 * opt.Stall):
				require.Fail(t, "the other end heard nothing")
			}
			close(free)
			err := <-own
			require.ErrorIs(t, err, transfer.ErrStall)
			require.ErrorContains(t, err, who)
		})
	}
}

func TestSlowSinkBoundsMemory(t *testing.T) { //nolint:paralleltest // measures the heap
	a, b := transfertest.Links(t, wire.Signed, 2, nil)
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
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc)
		})
		require.NoError(t, err)
	}()
	_, err := transfer.Send(context.Background(), transfertest.NewSource(stream), a, transfer.Options{Buffer: buffer}, nil)
	require.NoError(t, err)
	<-done
	// Two rings, a block for every goroutine, and room for the rest.
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
				time.AfterFunc(50*time.Millisecond, func() {
					if who != "receiver" {
						scancel()
					}
					if who != "sender" {
						rcancel()
					}
				})
				began := time.Now()
				o := moveIn(t, sctx, rctx, a, b, src, sink, transfer.Options{})
				require.Error(t, o.sendErr)
				require.Error(t, o.receiveErr)
				if who != "receiver" {
					require.ErrorIs(t, o.sendErr, context.Canceled)
				}
				if who != "sender" {
					require.ErrorIs(t, o.receiveErr, context.Canceled)
				}
				require.Less(t, time.Since(began), 20*time.Second)
				requireNothing(t, sink, transfertest.Random(5<<20))
				check()
			})
		}
	}
}

func TestPeerThatDies(t *testing.T) { //nolint:paralleltest // counts goroutines
	for _, mode := range modes {
		for _, who := range []string{"sender", "receiver"} {
			t.Run(fmt.Sprintf("%s/%s", mode, who), func(t *testing.T) {
				check := requireClean(t)
				a, b := transfertest.Links(t, mode, 3, nil)
				src, sink := transfertest.NewSource(transfertest.Random(5<<20)), newSink()
				src.Chunk, src.Pause = 64<<10, 5*time.Millisecond
				time.AfterFunc(100*time.Millisecond, func() {
					if who == "sender" {
						_ = a.Close()
					} else {
						_ = b.Close()
					}
				})
				o := move(t, a, b, src, sink, transfer.Options{Block: 64 << 10})
				require.ErrorIs(t, o.sendErr, wire.ErrCut)
				require.ErrorIs(t, o.receiveErr, wire.ErrCut)
				requireNothing(t, sink, transfertest.Random(5<<20))
				check()
			})
		}
	}
}

func TestBandLimit(t *testing.T) { //nolint:paralleltest // measures time: only its own cases run beside each other
	const limit = 4 << 20
	check := func(t *testing.T, bytes int64, took time.Duration, stages []transfer.Stage) {
		t.Helper()
		// Never more than the limit; how much less, a busy machine decides.
		rate := float64(bytes) / took.Seconds()
		require.Less(t, rate, 1.1*limit)
		require.Greater(t, rate, 0.1*limit)
		if rate > 0.8*limit { // else it was that machine
			require.Equal(t, transfer.LimitBandwidth, transfer.LimitedBy(stages, nil, nil))
		}
	}
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			a, b := transfertest.Links(t, mode, 3, nil)
			o := move(t, a, b, transfertest.NewSource(transfertest.Random(8<<20)), newSink(), transfer.Options{BandLimit: limit})
			require.NoError(t, o.sendErr)
			require.NoError(t, o.receiveErr)
			check(t, o.sent.Bytes, o.sendTime, o.sent.Stages)
		})
	}
	t.Run("local", func(t *testing.T) {
		t.Parallel()
		began := time.Now()
		res, err := transfer.Copy(context.Background(), transfertest.NewSource(transfertest.Random(8<<20)), newSink(), transfer.Options{BandLimit: limit}, nil)
		require.NoError(t, err)
		check(t, res.Bytes, time.Since(began), res.Stages)
	})
}

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
		requireNothing(t, sink, transfertest.Random(1000))
	})
	t.Run("stalls", func(t *testing.T) {
		t.Parallel()
		src, sink := transfertest.NewSource(transfertest.Random(1000)), newSink()
		src.Hang = true
		_, err := transfer.Copy(context.Background(), src, sink, transfer.Options{Stall: 100 * time.Millisecond}, nil)
		require.ErrorIs(t, err, transfer.ErrStall)
		require.ErrorContains(t, err, "memory source gave nothing")
		requireNothing(t, sink, transfertest.Random(1000))
	})
}
