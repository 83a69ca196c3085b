package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
)

// Stream is the source of a ZFS stream.
type Stream interface {
	transfer.Source
	// Cause returns the cause of a failed transfer: err, or the stream's own failure. Call it after
	// Close.
	Cause(err error) error
}

// SendSource is a running zfs send. If the child failed, Read returns its error instead of io.EOF.
type SendSource struct {
	p    *process
	r    *os.File
	name string
	stop func() bool
	kill context.CancelCauseFunc
	// killed is set by the first Close if another process's signal had ended the child.
	killed *zfs.Error
	first  sync.Once
}

var _ Stream = (*SendSource)(nil)

// errReleased ends the child of a stream that is no longer needed.
var errReleased = errors.New("stream was closed before its end")

// OpenSend starts a stream. It ends with ctx, with Close, or with this process.
func (c *CLI) OpenSend(ctx context.Context, s zfs.SendSpec) (Stream, error) {
	if c.remote != nil {
		return c.remote.OpenSend(ctx, s)
	}
	args, err := zfs.SendArgs(s)
	if err != nil {
		return nil, err
	}
	r, w, _, err := StreamPipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	subject := s.Dataset + "@" + s.To
	ctx, kill := context.WithCancelCause(ctx)
	p, err := c.start(ctx, start{
		tool: c.zfs, args: args, stdout: w,
		failure: zfs.Failure{Op: zfs.OpSend, Subject: subject, Ranges: len(s.Through) > 0},
	})
	if err != nil {
		kill(nil)
		r.Close()
		return nil, err
	}
	src := &SendSource{p: p, r: r, name: "zfs send " + subject, kill: kill}
	// Wake a blocked reader even if the child cannot end.
	src.stop = context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	return src, nil
}

// Name returns "zfs send DATASET@SNAPSHOT".
func (s *SendSource) Name() string { return s.name }

// Read reads from the stream. io.EOF means that zfs send exited with status 0.
func (s *SendSource) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if n > 0 || err == nil {
		return n, nil
	}
	if err == io.EOF || errors.Is(err, os.ErrDeadlineExceeded) {
		if failed := s.p.wait(); failed != nil {
			return 0, failed
		}
	}
	return 0, err
}

// Close kills a running child and closes the pipe. After another signal, or if its pipe ends, zfs send
// reports "signal received" or "Broken pipe" like failures that caused the end.
func (s *SendSource) Close() error {
	s.stop()
	s.first.Do(func() {
		select {
		case <-s.p.done:
			if failed := (*zfs.Error)(nil); errors.As(s.p.err, &failed) && failed.Kind == zfs.Killed {
				s.killed = failed
			}
		default:
			s.p.signal(syscall.SIGKILL)
		}
	})
	s.kill(errReleased)
	err := s.r.Close()
	<-s.p.done
	return err
}

// Cause returns why a transfer of the stream failed with err, after the source was closed. If zfs
// send was killed or failed at a snapshot, the receiver got an incomplete stream, so its error is
// not the cause.
//
// After a snapshot that it could not send, zfs send -I continues with the next one:
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_sendrecv.c (zfs_send, "even if there was some error")
func (s *SendSource) Cause(err error) error {
	f := s.p.failure
	f.Stderr, f.User = s.p.stderr.String(), UserName() // a killed child writes nothing more
	switch {
	case SendCaused(f.Stderr, err):
		return f.Err()
	case s.killed != nil && isReceiverError(err):
		return s.killed
	}
	return err
}

// SendCaused reports whether zfs send, with this output on standard error, caused the transfer error
// err.
func SendCaused(output string, err error) bool {
	return isReceiverError(err) && strings.Contains(output, "cannot send")
}

// isReceiverError reports whether err is from the receiver.
func isReceiverError(err error) bool {
	var received *zfs.Error
	return errors.As(err, new(*transfer.PeerError)) || errors.As(err, &received) && received.Op == zfs.OpReceive
}

// maxEstimates limits the concurrent zfs send -n processes.
const maxEstimates = 4

// Estimate runs one zfs send -n for each stream.
func (c *CLI) Estimate(ctx context.Context, streams []zfs.SendSpec) ([]uint64, error) {
	sizes := make([]uint64, len(streams))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxEstimates)
	for i, s := range streams {
		g.Go(func() error {
			args, err := zfs.EstimateArgs(s)
			if err != nil {
				return err
			}
			out, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpEstimate, Subject: s.Dataset + "@" + s.To}, args)
			if err != nil {
				return err
			}
			sizes[i], err = zfs.ParseEstimate(out)
			return err
		})
	}
	return sizes, g.Wait()
}

// pipePair selects the ends of a pipe that stay in this process.
type pipePair struct{ read, write bool }

// newPipe returns a pipe that children do not inherit unless it is passed to them. This process's
// end does not block, so that the runtime can interrupt it. The child's end blocks, because zfs
// send treats EAGAIN as a failure.
func newPipe(o pipePair) (r, w *os.File, err error) {
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	// os.NewFile polls a non-blocking descriptor. It cannot fail here.
	_ = unix.SetNonblock(fd[0], o.read)
	_ = unix.SetNonblock(fd[1], o.write)
	return os.NewFile(uintptr(fd[0]), "pipe"), os.NewFile(uintptr(fd[1]), "pipe"), nil
}

// StreamPipe returns a pipe that another process writes to. large reports whether it was enlarged.
func StreamPipe() (r, w *os.File, large bool, err error) {
	if r, w, err = newPipe(pipePair{read: true}); err != nil {
		return nil, nil, false, err
	}
	return r, w, transfer.GrowPipe(w), nil
}

// takesLargePipe reports whether zfs receive of a module version works with an enlarged pipe.
// Before 2.2 it resizes the pipe itself, and could hang on a larger one. An unknown version counts
// as old.
func takesLargePipe(module string) bool {
	for _, old := range []string{"0.", "2.0.", "2.1."} {
		if strings.HasPrefix(module, old) {
			return false
		}
	}
	return module != ""
}
