package transfer_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
)

// nullSink is a pipe whose reader splices it to /dev/null, so that only the transfer is
// measured.
type nullSink struct {
	w    *os.File
	done chan struct{}
}

func newNullSink(b *testing.B) *nullSink {
	b.Helper()
	r, w, err := os.Pipe()
	require.NoError(b, err)
	s := &nullSink{w: w, done: make(chan struct{})}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(b, err)
	go func() {
		defer close(s.done)
		defer r.Close()
		defer null.Close()
		fd, to := int(r.Fd()), int(null.Fd()) // blocking from here on
		for {
			n, err := unix.Splice(fd, nil, to, nil, 1<<20, 0)
			if n == 0 || err != nil && err != unix.EINTR {
				return
			}
		}
	}()
	return s
}

func (s *nullSink) Name() string                 { return "null" }
func (s *nullSink) Pipe() *os.File               { return s.w }
func (s *nullSink) Reads() bool                  { return true }
func (s *nullSink) Withhold() int                { return tailSize }
func (s *nullSink) Write(p []byte) (int, error)  { return s.w.Write(p) }
func (s *nullSink) Abort(error) error            { _ = s.w.Close(); <-s.done; return nil }
func (s *nullSink) Commit(context.Context) error { err := s.w.Close(); <-s.done; return err }

// zeroPipe returns a pipe with n zero bytes, written in pieces of a stream record's size.
func zeroPipe(b *testing.B, n int64) *pipeSource {
	b.Helper()
	r, w, err := os.Pipe()
	require.NoError(b, err)
	raw, err := w.SyscallConn()
	require.NoError(b, err)
	require.NoError(b, raw.Control(func(fd uintptr) { _, err = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, 1<<20) }))
	require.NoError(b, err)
	go func() {
		defer w.Close()
		p := transfertest.Random(128 << 10)
		for n > 0 {
			k, err := w.Write(p[:min(n, int64(len(p)))])
			if err != nil {
				return
			}
			n -= int64(k)
		}
	}()
	return &pipeSource{r: r}
}

// BenchmarkLoopback moves a stream between pipes over loopback. The CPU time includes both
// ends, the producer and the consumer.
func BenchmarkLoopback(b *testing.B) {
	const size = 256 << 20
	for _, mode := range modes {
		for _, streams := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/%d", mode, streams), func(b *testing.B) {
				b.SetBytes(size)
				before := transfertest.CPUTime(b)
				var limited string
				for b.Loop() {
					sender, receiver := transfertest.Links(b, mode, streams, nil)
					o := move(b, sender, receiver, zeroPipe(b, size), newNullSink(b), transfer.Options{})
					require.NoError(b, o.sendErr)
					require.NoError(b, o.receiveErr)
					limited = transfer.LimitedBy(o.sent.Stages, o.received.Stages, o.sent.Network)
				}
				b.ReportMetric((transfertest.CPUTime(b)-before).Seconds()/(float64(b.N)*size/1e9), "cpu-s/GB")
				b.Log(limited)
			})
		}
	}
}

// BenchmarkCopyLoop is the baseline: one goroutine that copies between pipes.
func BenchmarkCopyLoop(b *testing.B) {
	const size = 256 << 20
	b.SetBytes(size)
	before := transfertest.CPUTime(b)
	for b.Loop() {
		sink := newNullSink(b)
		src := zeroPipe(b, size)
		_, err := io.CopyBuffer(struct{ io.Writer }{sink}, struct{ io.Reader }{src}, make([]byte, 1<<20))
		require.NoError(b, err)
		require.NoError(b, sink.Commit(context.Background()))
	}
	b.ReportMetric((transfertest.CPUTime(b)-before).Seconds()/(float64(b.N)*size/1e9), "cpu-s/GB")
}
