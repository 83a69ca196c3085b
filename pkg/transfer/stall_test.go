package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/transport/tcp"
)

func TestLongCommitIsNotAStall(t *testing.T) {
	t.Parallel()
	testenv.Widen(t, firstStall, func(stall time.Duration) error {
		a, b := transfertest.Links(t, tcp.Signed, 2, nil)
		sink := newSink()
		sink.Slow = 2 * stall
		o := move(t, a, b, transfertest.NewSource(transfertest.Random(1000)), sink, transfer.Options{Stall: stall})
		return errors.Join(o.receiveErr, o.sendErr)
	})
}

// busySource works before its first Read returns.
type busySource struct {
	*transfertest.Source
	work   time.Duration
	worked atomic.Int64
}

func (s *busySource) Read(b []byte) (int, error) {
	for end := time.Now().Add(s.work); time.Now().Before(end); time.Sleep(time.Millisecond) {
		s.worked.Add(1)
	}
	s.work = 0
	return s.Source.Read(b)
}

func (s *busySource) Worked() int64 { return s.worked.Load() }

// TestWorkIsNotAStall expects that a source that works without sending data does not stall a transfer,
// if the receiver permits a longer silence.
func TestWorkIsNotAStall(t *testing.T) {
	t.Parallel()
	testenv.Widen(t, firstStall, func(stall time.Duration) error {
		stream := transfertest.Random(1000)
		src := func() *busySource { return &busySource{Source: transfertest.NewSource(stream), work: 2 * stall} }
		var last transfer.Progress
		if _, err := transfer.Copy(t.Context(), src(), newSink(), transfer.Options{Stall: stall}, func(p transfer.Progress) { last = p }); err != nil {
			return err
		}
		require.Positive(t, last.Worked)
		a, b := transfertest.Links(t, tcp.Signed, 2, nil)
		sink, received := newSink(), make(chan error, 1)
		go func() {
			_, err := transfer.Receive(t.Context(), b, sink, transfer.Options{Stall: transfer.MaxStall}, nil)
			received <- err
		}()
		res, err := transfer.Send(t.Context(), src(), a, transfer.Options{Stall: stall}, nil)
		if err == nil {
			require.Positive(t, res.Worked)
		}
		return errors.Join(err, <-received)
	})
}

// firstStall is the first stall limit that tests try. The ends of a transfer compare how long
// each has waited.
const firstStall = 400 * time.Millisecond

// stallOf returns nil if err is a stall that names who.
func stallOf(err error, who string) error {
	if errors.Is(err, transfer.ErrStall) && strings.Contains(err.Error(), who) {
		return nil
	}
	return fmt.Errorf("%w instead of a stall: %s", err, who)
}

func TestStallNamesTheSide(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode)+"/source", func(t *testing.T) {
			t.Parallel()
			testenv.Widen(t, firstStall, func(stall time.Duration) error {
				a, b := transfertest.Links(t, mode, 2, nil)
				src, sink := transfertest.NewSource(transfertest.Random(1000)), newSink()
				src.Hang = true
				o := move(t, a, b, src, sink, transfer.Options{Stall: stall, Buffer: 1 << 20})
				require.Error(t, o.receiveErr)
				requireNoEffect(t, sink, transfertest.Random(1000))
				if errors.Is(o.sendErr, tcp.ErrConnectionLost) {
					return o.sendErr
				}
				return stallOf(o.sendErr, "memory source sent no data")
			})
		})
		t.Run(string(mode)+"/target", func(t *testing.T) {
			t.Parallel()
			testenv.Widen(t, firstStall, func(stall time.Duration) error {
				a, b := transfertest.Links(t, mode, 2, nil)
				stream := transfertest.Random(32 << 20)
				src, sink := transfertest.NewSource(stream), newSink()
				sink.HangAfter = 100
				o := move(t, a, b, src, sink, transfer.Options{Stall: stall, Buffer: 1 << 20})
				require.Error(t, o.sendErr)
				requireNoEffect(t, sink, stream)
				return stallOf(o.receiveErr, "memory sink accepted no data")
			})
		})
	}
}

// Stubborn sources and sinks hang even if they are closed or aborted.
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

// TestPermanentHangIsReported expects that the other host still learns of the stall and its
// cause.
func TestPermanentHangIsReported(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"memory source sent no data", "memory sink accepted no data"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			testenv.Widen(t, firstStall, func(stall time.Duration) error { return hangPermanently(t, who, stall) })
		})
	}
}

// hangPermanently returns nil if the other end learns of a stall while this end hangs.
func hangPermanently(t *testing.T, who string, stall time.Duration) error {
	opt := transfer.Options{Stall: stall, Buffer: 1 << 20}
	free := make(chan struct{})
	source, sink := transfertest.NewSource(transfertest.Random(8<<20)), newSink()
	a, b := transfertest.Links(t, tcp.Signed, 2, nil)
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
	var heard error
	select {
	case heard = <-other:
	case <-time.After(testenv.Timeout()):
		require.Fail(t, "the other end heard nothing")
	}
	close(free)
	if err := stallOf(<-own, who); err != nil {
		return err
	}
	if !errors.As(heard, new(*transfer.PeerError)) || !strings.Contains(heard.Error(), who) {
		return fmt.Errorf("the other end failed with %w", heard)
	}
	return nil
}

// TestShortestStall expects that another host's stall limit of a nanosecond is an error at most.
func TestShortestStall(t *testing.T) {
	t.Parallel()
	a, b := transfertest.Links(t, tcp.Signed, 1, nil)
	o := move(t, a, b, transfertest.NewSource(transfertest.Random(1000)), newSink(), transfer.Options{Stall: 1})
	for _, err := range []error{o.receiveErr, o.sendErr} {
		require.True(t, err == nil || !strings.Contains(err.Error(), "panic"), err)
	}
}
