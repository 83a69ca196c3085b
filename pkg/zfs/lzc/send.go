package lzc

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

// OpenSend lets the helper write a small incremental stream into a pipe, which is much faster
// than starting a process. zfs send does the rest: other streams, and streams that the helper
// failed to send, because its error messages are better.
func (c *Client) OpenSend(ctx context.Context, s zfs.SendSpec) (cli.Stream, error) {
	if _, err := zfs.SendArgs(s); err != nil { // it checks names
		return nil, err
	}
	if s.Token != "" || len(s.Through) > 0 {
		return c.cli.OpenSend(ctx, s)
	}
	r, w, roomy, err := cli.StreamPipe()
	if err != nil {
		return nil, err
	}
	if !roomy { // a slow reader would block all other requests
		r.Close()
		w.Close()
		return c.cli.OpenSend(ctx, s)
	}
	src := &sendSource{ctx: ctx, cli: c.cli, spec: s, r: r, done: make(chan struct{})}
	src.stop = context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	go src.send(c, w)
	return src, nil
}

// sendSource is a stream from the helper, or from zfs send if the helper failed.
type sendSource struct {
	ctx       context.Context
	cli       *cli.CLI
	spec      zfs.SendSpec
	r         *os.File
	stop      func() bool
	delivered bool          // some bytes were read
	done      chan struct{} // closed when the helper is done; then err is valid
	err       error

	mu       sync.Mutex
	closed   bool
	fallback cli.Stream
}

func (s *sendSource) send(c *Client, w *os.File) {
	defer close(s.done)
	defer w.Close() // the reader sees the end when the helper closes its copy
	name := s.spec.Dataset + "@" + s.spec.To
	of := translate(s.spec)
	fd := int(w.Fd())
	var pipe unix.Stat_t
	if s.err = unix.Fstat(fd, &pipe); s.err != nil {
		return
	}
	request := map[string]any{"op": "send", "process": os.Getpid(), "pipe": fd, "inode": pipe.Ino, "from": of.Steps[0][0], "to": name, "flags": of.Flags}
	s.err = zfsErrors(zfs.OpSend, []string{name}, c.call(s.ctx, zfs.OpSend, name, request, nil))
	if s.err != nil && s.ctx.Err() == nil && !errors.As(s.err, new(*zfs.Error)) { // the helper ended
		s.err = &zfs.Error{Kind: zfs.Killed, Op: zfs.OpSend, Subject: name, Detail: s.err.Error()}
	}
}

// Name returns the name that a stream of zfs send has.
func (s *sendSource) Name() string { return "zfs send " + s.spec.Dataset + "@" + s.spec.To }

// Read returns io.EOF only after a complete stream.
func (s *sendSource) Read(b []byte) (int, error) {
	if other := s.runningFallback(); other != nil {
		return other.Read(b)
	}
	n, err := s.r.Read(b)
	if n > 0 || err == nil {
		s.delivered = s.delivered || n > 0
		return n, nil
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, err
	}
	select {
	case <-s.done:
	case <-s.ctx.Done():
		return 0, context.Cause(s.ctx)
	}
	switch {
	case s.err == nil:
		return 0, err
	case s.delivered || s.ctx.Err() != nil:
		return 0, s.err
	}
	other, err := s.startFallback()
	if err != nil {
		return 0, err
	}
	return other.Read(b)
}

func (s *sendSource) runningFallback() cli.Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fallback
}

// startFallback starts zfs send, unless the stream was closed.
func (s *sendSource) startFallback() (cli.Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, os.ErrClosed
	}
	other, err := s.cli.OpenSend(s.ctx, s.spec)
	if err == nil {
		s.fallback = other
	}
	return other, err
}

// Close ends the stream. Its writer gets EPIPE.
func (s *sendSource) Close() error {
	s.mu.Lock()
	s.closed = true
	other := s.fallback
	s.mu.Unlock()
	s.stop()
	err := s.r.Close()
	if other != nil {
		return other.Close()
	}
	return err
}

// Cause returns the cause that zfs send reports. The helper's errors are complete.
func (s *sendSource) Cause(err error) error {
	if other := s.runningFallback(); other != nil {
		return other.Cause(err)
	}
	return err
}
