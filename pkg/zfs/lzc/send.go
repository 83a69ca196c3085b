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

// OpenSend has the helper write one small increment into a pipe, which it fits into:
// to start a process takes many times as long as such a stream. All else, and what the
// helper cannot send, zfs send does, which says best why it fails.
func (c *Client) OpenSend(ctx context.Context, s zfs.SendSpec) (cli.Stream, error) {
	if _, err := zfs.SendArgs(s); err != nil { // names are checked there
		return nil, err
	}
	if s.Token != "" || len(s.Through) > 0 {
		return c.cli.OpenSend(ctx, s)
	}
	r, w, roomy, err := cli.StreamPipe()
	if err != nil {
		return nil, err
	}
	if !roomy { // a reader that waits would keep all other requests waiting
		r.Close()
		w.Close()
		return c.cli.OpenSend(ctx, s)
	}
	src := &sendSource{ctx: ctx, cli: c.cli, spec: s, r: r, done: make(chan struct{})}
	src.stop = context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	go src.send(c, w)
	return src, nil
}

// sendSource is the stream of a helper, or of zfs send in its stead.
type sendSource struct {
	ctx  context.Context
	cli  *cli.CLI
	spec zfs.SendSpec
	r    *os.File
	stop func() bool
	any  bool          // was read
	done chan struct{} // closed when the helper has sent all, or err is set
	err  error

	mu      sync.Mutex
	closed  bool
	instead cli.Stream
}

func (s *sendSource) send(c *Client, w *os.File) {
	defer close(s.done)
	defer w.Close() // the reader sees the end once the helper has closed its own
	name := s.spec.Dataset + "@" + s.spec.To
	of := streamOf(s.spec)
	fd := int(w.Fd())
	var pipe unix.Stat_t
	if s.err = unix.Fstat(fd, &pipe); s.err != nil {
		return
	}
	request := map[string]any{"op": "send", "process": os.Getpid(), "pipe": fd, "inode": pipe.Ino, "from": of.Steps[0][0], "to": name, "flags": of.Flags}
	s.err = typed(zfs.OpSend, []string{name}, c.call(s.ctx, zfs.OpSend, name, request, nil))
	if s.err != nil && s.ctx.Err() == nil && !errors.As(s.err, new(*zfs.Error)) { // whatever ended the helper
		s.err = &zfs.Error{Kind: zfs.Killed, Op: zfs.OpSend, Subject: name, Detail: s.err.Error()}
	}
}

// Name is what zfs send has.
func (s *sendSource) Name() string { return "zfs send " + s.spec.Dataset + "@" + s.spec.To }

// Read returns io.EOF only where the stream is whole.
func (s *sendSource) Read(b []byte) (int, error) {
	if other := s.other(); other != nil {
		return other.Read(b)
	}
	n, err := s.r.Read(b)
	if n > 0 || err == nil {
		s.any = s.any || n > 0
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
	case s.any || s.ctx.Err() != nil:
		return 0, s.err
	}
	other, err := s.begin()
	if err != nil {
		return 0, err
	}
	return other.Read(b)
}

func (s *sendSource) other() cli.Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.instead
}

// begin starts zfs send, unless nobody wants the stream any more.
func (s *sendSource) begin() (cli.Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, os.ErrClosed
	}
	other, err := s.cli.OpenSend(s.ctx, s.spec)
	if err == nil {
		s.instead = other
	}
	return other, err
}

// Close ends the stream; who still writes it finds the pipe closed.
func (s *sendSource) Close() error {
	s.mu.Lock()
	s.closed = true
	other := s.instead
	s.mu.Unlock()
	s.stop()
	err := s.r.Close()
	if other != nil {
		return other.Close()
	}
	return err
}

// Cause is what zfs send knows; the helper has said all.
func (s *sendSource) Cause(err error) error {
	if other := s.other(); other != nil {
		return other.Cause(err)
	}
	return err
}
