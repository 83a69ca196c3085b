package cli_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// gateSink is a ReceiveSink without ZFS: a pipe to /dev/null behind a gate. If headOnly is
// set, only the first record goes through the gate, as before the gate read all of them.
type gateSink struct {
	w        *os.File
	done     chan struct{}
	gate     *zfs.Gate
	headOnly bool
	judged   bool
}

func newGateSink(b *testing.B, spec zfs.ReceiveSpec, headOnly bool) *gateSink {
	b.Helper()
	gate, err := zfs.NewGate(spec)
	require.NoError(b, err)
	r, w := pipe(b)
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(b, err)
	s := &gateSink{w: w, done: make(chan struct{}), gate: gate, headOnly: headOnly}
	go func() {
		defer close(s.done)
		defer r.Close()
		defer null.Close()
		from, to := int(r.Fd()), int(null.Fd()) // blocking from here on
		for {
			n, err := unix.Splice(from, nil, to, nil, 1<<20, 0)
			if n == 0 || err != nil && err != unix.EINTR {
				return
			}
		}
	}()
	return s
}

// pipe returns a pipe of the size of zxfer's pipes to zfs.
func pipe(b *testing.B) (r, w *os.File) {
	b.Helper()
	r, w, err := os.Pipe()
	require.NoError(b, err)
	raw, err := w.SyscallConn()
	require.NoError(b, err)
	require.NoError(b, raw.Control(func(fd uintptr) { _, err = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, 1<<20) }))
	require.NoError(b, err)
	return r, w
}

func (s *gateSink) Name() string            { return "gate" }
func (s *gateSink) Pipe() *os.File          { return s.w }
func (s *gateSink) Reads() bool             { return true }
func (s *gateSink) Withhold() int           { return zfs.TailSize }
func (s *gateSink) Explain(err error) error { return err }

func (s *gateSink) Bypassable() int64 {
	if s.headOnly && s.judged {
		return math.MaxInt64
	}
	return s.gate.Bypassable()
}
func (s *gateSink) Bypassed(n int64) {
	if !s.headOnly {
		s.gate.Bypassed(n)
	}
}
func (s *gateSink) Check(p []byte) error {
	if !s.headOnly || !s.judged {
		judge := p
		if s.headOnly {
			judge = p[:zfs.RecordSize]
		}
		if err := s.gate.Check(judge); err != nil {
			return err
		}
		s.judged = true
	}
	return nil
}
func (s *gateSink) Write(p []byte) (int, error) {
	if err := s.Check(p); err != nil {
		return 0, err
	}
	return s.w.Write(p)
}
func (s *gateSink) Abort(error) error            { _ = s.w.Close(); <-s.done; return nil }
func (s *gateSink) Commit(context.Context) error { err := s.w.Close(); <-s.done; return err }

// pipedStream is a zfs send without ZFS.
type pipedStream struct{ r *os.File }

func newPipedStream(b *testing.B, stream []byte) *pipedStream {
	b.Helper()
	r, w := pipe(b)
	go func() {
		defer w.Close()
		for p := stream; len(p) > 0; {
			n, err := w.Write(p[:min(len(p), 128<<10)])
			if err != nil {
				return
			}
			p = p[n:]
		}
	}()
	return &pipedStream{r}
}

func (s *pipedStream) Name() string               { return "stream" }
func (s *pipedStream) Close() error               { return s.r.Close() }
func (s *pipedStream) Read(p []byte) (int, error) { return s.r.Read(p) }

var (
	_ transfer.PipeSink = (*gateSink)(nil)
	_ transfer.Source   = (*pipedStream)(nil)
)

// BenchmarkGateOnWires moves a stream from a pipe to a pipe with a gate, over loopback and
// locally. The CPU time includes both ends, the producer and the consumer. Compare "head"
// and "records".
func BenchmarkGateOnWires(b *testing.B) {
	const size = 256 << 20
	for _, block := range []int{4 << 10, 16 << 10, 128 << 10} {
		data := transfertest.Random(block)
		s := zfstest.New("tank/a@x", 7, 0, false)
		end := s[1]
		s = append(s[:1], zfstest.Object(1, zfstest.WrittenBlock, 7, false))
		s[0].AddFeatures(zfstest.FeatureCompressed)
		for i := range size / (block + zfs.RecordSize) {
			r := zfstest.Write(1, uint64(i)*zfstest.WrittenBlock, 7)
			r.SetBlock(zfstest.WrittenBlock)
			r.SetPacked(uint64(block))
			r.Payload = data
			s = append(s, r)
		}
		stream := append(s, end).Bytes()
		spec := plannedReceive(b, stream)
		for _, mode := range []tcp.Mode{tcp.Signed, tcp.Plain, ""} {
			name := string(mode)
			if mode == "" {
				name = "local"
			}
			for _, headOnly := range []bool{true, false} {
				b.Run(fmt.Sprintf("%s/%d/%s", name, block, map[bool]string{true: "head", false: "records"}[headOnly]), func(b *testing.B) {
					b.SetBytes(int64(len(stream)))
					before := transfertest.CPUTime(b)
					for b.Loop() {
						src, sink := newPipedStream(b, stream), newGateSink(b, spec, headOnly)
						if mode == "" {
							_, err := transfer.Copy(b.Context(), src, sink, transfer.Options{}, nil)
							require.NoError(b, err)
							continue
						}
						sender, receiver := transfertest.Links(b, mode, 1, nil)
						done := make(chan error, 1)
						go func() {
							_, err := transfer.Receive(b.Context(), receiver, sink, transfer.Options{}, nil)
							done <- err
						}()
						_, err := transfer.Send(b.Context(), src, sender, transfer.Options{}, nil)
						require.NoError(b, err)
						require.NoError(b, <-done)
					}
					b.ReportMetric((transfertest.CPUTime(b)-before).Seconds()/(float64(b.N)*float64(len(stream))/1e9), "cpu-s/GB")
				})
			}
		}
	}
}
