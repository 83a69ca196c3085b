package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
)

// Stream is a Source of a stream, which knows best whether its own failure is
// what an error is about.
type Stream interface {
	transfer.Source
	// Cause is to be asked after Close.
	Cause(err error) error
}

// SendSource is a running zfs send. Its Read returns the child's failure
// where another would return the end.
type SendSource struct {
	p    *process
	r    *os.File
	name string
	stop func() bool
	kill context.CancelCauseFunc
	// killed is set by the first Close if a signal of somebody else had ended the child before.
	killed *zfs.Error
	first  sync.Once
}

var _ Stream = (*SendSource)(nil)

// errReleased ends a child whose stream nobody wants any more.
var errReleased = errors.New("stream was closed before its end")

// OpenSend starts a stream. It ends with ctx, with Close, or with this
// process.
func (c *CLI) OpenSend(ctx context.Context, s zfs.SendSpec) (Stream, error) {
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
		failure: zfs.Failure{Op: zfs.OpSend, Subject: subject},
	})
	if err != nil {
		kill(nil)
		r.Close()
		return nil, err
	}
	src := &SendSource{p: p, r: r, name: "zfs send " + subject, kill: kill}
	// A reader is woken even where the child cannot die.
	src.stop = context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	return src, nil
}

// Name is "zfs send DATASET@SNAPSHOT".
func (s *SendSource) Name() string { return s.name }

// Pipe is the read end of the child's stdout, for splice(2). Who reads it to
// its end must ask Wait what that end means.
func (s *SendSource) Pipe() *os.File { return s.r }

// Wait returns when the child is gone: nil if the stream is whole.
func (s *SendSource) Wait() error { return s.p.wait() }

// Read reads from the stream. io.EOF means that zfs send exited 0.
func (s *SendSource) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if n > 0 || err == nil {
		return n, nil
	}
	if err == io.EOF || errors.Is(err, os.ErrDeadlineExceeded) {
		if failed := s.Wait(); failed != nil {
			return 0, failed
		}
	}
	return 0, err
}

// Close ends the child, if it still runs, and releases the pipe.
func (s *SendSource) Close() error {
	s.stop()
	s.first.Do(func() {
		select {
		case <-s.p.done:
			if failed := (*zfs.Error)(nil); errors.As(s.p.err, &failed) && failed.Kind == zfs.Killed {
				s.killed = failed
			}
		default:
		}
	})
	s.kill(errReleased)
	err := s.r.Close()
	<-s.p.done
	return err
}

// Cause returns why a transfer of the stream failed with err, once the source is closed. If
// zfs send was killed, or failed at a snapshot, the receiver got a stream that ends in the
// middle. Whatever it says of that explains nothing.
//
// zfs send -I goes on with the next snapshot behind one that it could not send:
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_sendrecv.c (zfs_send, "even if there was some error")
func (s *SendSource) Cause(err error) error {
	f := s.p.failure
	f.Stderr, f.User = s.p.stderr.String(), UserName() // a child that is ended says nothing more
	switch {
	case Explains(f.Stderr, err):
		return f.Err()
	case s.killed != nil && heard(err):
		return s.killed
	}
	return err
}

// Explains reports whether zfs send, which ended after it said so much, made a transfer of
// its stream fail with err.
func Explains(said string, err error) bool {
	return heard(err) && strings.Contains(said, "cannot send")
}

// heard reports whether err is of the receiver.
func heard(err error) bool {
	var received *zfs.Error
	return errors.As(err, new(*transfer.PeerError)) || errors.As(err, &received) && received.Op == zfs.OpReceive
}
