package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/transport/tcp"
)

// pipeSource behaves like a child's stdout: a pipe, and an error that only the exit reports.
type pipeSource struct {
	r    *os.File
	fail error
	once sync.Once
}

// newPipeSource writes p to a pipe, in pieces like a producer.
func newPipeSource(t testing.TB, p []byte, piece int) *pipeSource {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	go func() {
		defer w.Close()
		for len(p) > 0 {
			n := min(piece, len(p))
			if _, err := w.Write(p[:n]); err != nil {
				return
			}
			p = p[n:]
		}
	}()
	return &pipeSource{r: r}
}

func (s *pipeSource) Name() string { return "pipe source" }
func (s *pipeSource) Close() error { s.once.Do(func() { _ = s.r.Close() }); return nil }
func (s *pipeSource) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err == io.EOF && s.fail != nil {
		err = s.fail
	}
	return n, err
}

// pipeSink behaves like a child's stdin.
type pipeSink struct {
	w         *os.File
	got       bytes.Buffer
	done      chan struct{}
	aborting  chan struct{}
	committed bool
	aborted   error
	// resumable means that the consumer's error is only an incomplete stream, which Abort does not report.
	resumable bool
}

// untilAborted pauses a pipeSink after its first read until it is aborted.
func untilAborted(s *pipeSink) { <-s.aborting }

// newPipeSink reads a pipe like a consumer and calls pause, which may be nil, after each read.
// It stops after most bytes, 0 = never.
func newPipeSink(t testing.TB, most int64, pause func(*pipeSink)) *pipeSink {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	s := &pipeSink{w: w, done: make(chan struct{}), aborting: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer r.Close()
		p := make([]byte, 64<<10)
		for {
			n, err := r.Read(p)
			s.got.Write(p[:n])
			if err != nil || most > 0 && int64(s.got.Len()) >= most {
				return
			}
			if pause != nil {
				pause(s)
			}
		}
	}()
	return s
}

func (s *pipeSink) Name() string       { return "pipe sink" }
func (s *pipeSink) Pipe() *os.File     { return s.w }
func (s *pipeSink) Reads() bool        { return true }
func (s *pipeSink) Bypassable() int64  { return math.MaxInt64 }
func (s *pipeSink) Bypassed(int64)     {}
func (s *pipeSink) Check([]byte) error { return nil }
func (s *pipeSink) Withhold() int      { return tailSize }

func (s *pipeSink) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	return n, s.Explain(err)
}

func (s *pipeSink) Commit(context.Context) error {
	err := s.w.Close()
	<-s.done
	s.committed = true
	return err
}

var errConsumer = errors.New("the consumer gave up")

func (s *pipeSink) Abort(cause error) error {
	s.aborted = cause
	close(s.aborting)
	_ = s.w.Close()
	<-s.done
	if s.resumable {
		return nil
	}
	return errConsumer
}

// Explain returns the consumer's error if it ended.
func (s *pipeSink) Explain(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		<-s.done
		return errConsumer
	}
	return err
}

func TestPipes(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		for _, streams := range []int{1, 2} {
			for _, size := range []int{0, 1, tailSize - 1, tailSize, tailSize + 1, 65536, 7<<20 + 5} {
				for _, piece := range []int{100, 3000, 1 << 20} {
					if piece == 100 && size > 1<<20 {
						continue
					}
					t.Run(fmt.Sprintf("%s/%d/%d/%d", mode, streams, size, piece), func(t *testing.T) {
						t.Parallel()
						want := transfertest.Random(size)
						a, b := transfertest.Links(t, mode, streams, nil)
						sink := newPipeSink(t, 0, nil)
						o := move(t, a, b, newPipeSource(t, want, piece), sink, transfer.Options{})
						require.NoError(t, o.sendErr)
						require.NoError(t, o.receiveErr)
						require.True(t, sink.committed)
						require.True(t, bytes.Equal(want, sink.got.Bytes()))
						require.EqualValues(t, size, o.received.Bytes)
						require.NotEmpty(t, o.sent.Digest)
						spliced := mode == tcp.Plain && streams == 1
						require.Equal(t, spliced, o.received.Digest == "", "a receiver that splices sees no bytes")
					})
				}
			}
		}
	}
}

// TestSpliceOfFrames expects that a receiver splices frames of any kind, also compressed ones.
func TestSpliceOfFrames(t *testing.T) {
	t.Parallel()
	want := transfertest.Random(5<<20 + 1)
	for _, compress := range []string{"", "zstd:1"} {
		stream := want
		if compress != "" {
			stream = bytes.Repeat(want[:10_000], 500)
		}
		t.Run(compress, func(t *testing.T) {
			t.Parallel()
			a, b := transfertest.Links(t, tcp.Plain, 1, nil)
			sink := newPipeSink(t, 0, nil)
			o := move(t, a, b, transfertest.NewSource(stream), sink, transfer.Options{Compress: compress})
			require.NoError(t, o.sendErr)
			require.NoError(t, o.receiveErr)
			require.True(t, bytes.Equal(stream, sink.got.Bytes()))
		})
	}
}

func TestPipeFailures(t *testing.T) {
	t.Parallel()
	stream := transfertest.Random(6 << 20)
	for _, mode := range modes {
		t.Run(string(mode)+"/source", func(t *testing.T) {
			t.Parallel()
			a, b := transfertest.Links(t, mode, 1, nil)
			src, sink := newPipeSource(t, stream, 1<<20), newPipeSink(t, 0, nil)
			src.fail = errors.New("exit status 1")
			o := move(t, a, b, src, sink, transfer.Options{})
			require.Equal(t, src.fail, o.sendErr)
			var peer *transfer.PeerError
			require.ErrorAs(t, o.receiveErr, &peer)
			require.Equal(t, "exit status 1", peer.Text)
			require.False(t, sink.committed)
			require.True(t, bytes.Equal(stream[:len(stream)-tailSize], sink.got.Bytes()), "all except the tail")
		})
		t.Run(string(mode)+"/sink", func(t *testing.T) {
			t.Parallel()
			a, b := transfertest.Links(t, mode, 1, nil)
			sink := newPipeSink(t, 1<<20, nil)
			o := move(t, a, b, newPipeSource(t, stream, 1<<20), sink, transfer.Options{})
			require.ErrorIs(t, o.receiveErr, errConsumer, "the child's message, not a broken pipe")
			var peer *transfer.PeerError
			require.ErrorAs(t, o.sendErr, &peer)
			require.Contains(t, peer.Text, errConsumer.Error())
			require.False(t, sink.committed)
		})
		t.Run(string(mode)+"/interrupted sink", func(t *testing.T) {
			t.Parallel()
			a, b := transfertest.Links(t, mode, 1, nil)
			sink := newPipeSink(t, 1<<20, nil)
			sink.resumable = true
			o := move(t, a, b, newPipeSource(t, stream, 1<<20), sink, transfer.Options{})
			require.ErrorIs(t, o.receiveErr, errConsumer)
			require.False(t, sink.committed)
		})
		t.Run(string(mode)+"/stalled source", func(t *testing.T) {
			t.Parallel()
			testenv.Widen(t, firstStall, func(stall time.Duration) error {
				a, b := transfertest.Links(t, mode, 1, nil)
				r, w, err := os.Pipe()
				require.NoError(t, err)
				defer w.Close()
				o := move(t, a, b, &pipeSource{r: r}, newPipeSink(t, 0, nil), transfer.Options{Stall: stall})
				return stallOf(o.sendErr, "pipe source sent no data")
			})
		})
		t.Run(string(mode)+"/stalled sink", func(t *testing.T) {
			t.Parallel()
			testenv.Widen(t, firstStall, func(stall time.Duration) error {
				a, b := transfertest.Links(t, mode, 1, nil)
				opt := transfer.Options{Stall: stall, Buffer: 1 << 20}
				o := move(t, a, b, newPipeSource(t, transfertest.Random(20<<20), 1<<20), newPipeSink(t, 0, untilAborted), opt)
				require.Error(t, o.sendErr)
				return stallOf(o.receiveErr, "pipe sink accepted no data")
			})
		})
	}
}

func TestGrowPipe(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	require.True(t, transfer.GrowPipe(w))
	n, err := unix.FcntlInt(r.Fd(), unix.F_GETPIPE_SZ, 0)
	require.NoError(t, err)
	require.Equal(t, 1<<20, n)
}
