package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"zxfer/pkg/wire"
)

// The zero-copy path of mode plain over one connection: pipe → socket → pipe
// by splice(2). Go's io.Copy does that from a socket to a pipe, but not from a
// pipe to a socket, and neither leaves the stream's tail behind.

// spliceChunk is what one splice is asked to move, the usual size of a pipe.
const spliceChunk = 1 << 20

func (s *sending) spliceable() bool {
	return s.link.Mode() == wire.Plain && len(s.link.Conns()) == 1 && !s.opt.compresses()
}

// splice moves the source's pipe onto the connection. Each frame is as large
// as what the pipe holds at that moment.
func (s *sending) splice(ctx context.Context, src PipeSource) error {
	conn := s.link.Conns()[0]
	pipe, err := src.Pipe().SyscallConn()
	if err != nil {
		return &sourceError{err}
	}
	socket, err := conn.TCP().SyscallConn()
	if err != nil {
		return err
	}
	header := wire.NewFrame(0)
	t := startTimer()
	for {
		n, err := pipeHolds(pipe)
		t.add(&s.reader.in)
		if err == io.EOF {
			break
		}
		if err != nil {
			return &sourceError{err}
		}
		if err := allow(ctx, s.limit, n); err != nil {
			return err
		}
		header.Kind, header.Seq, header.Raw = wire.Data, uint64(s.frames), uint32(n)
		if err := conn.WriteHeader(header, n); err != nil {
			return err
		}
		if err := intoSocket(src.Pipe(), socket, n); err != nil {
			return fmt.Errorf("send: %w: %w", wire.ErrCut, err)
		}
		t.add(&s.sender.out)
		s.frames++
		s.reader.bytes.Add(int64(n))
		s.sender.bytes.Add(int64(n))
		s.wired.bytes.Add(int64(n) + wire.HeaderSize)
	}
	if err := src.Wait(); err != nil && !errors.Is(err, io.EOF) {
		return &sourceError{err}
	}
	return writeEnding(conn, ending{Bytes: s.sender.bytes.Load(), Frames: uint64(s.frames), Connection: uint64(s.frames)})
}

// pipeHolds waits until a pipe holds bytes and returns how many, at most
// spliceChunk; io.EOF once its writers are gone and it is empty.
func pipeHolds(pipe interface {
	Read(func(uintptr) bool) error
}) (n int, err error) {
	rerr := pipe.Read(func(fd uintptr) bool {
		n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) // FIONREAD
		if n > 0 || err != nil {
			return true
		}
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, perr := unix.Poll(poll, 0); perr == nil && poll[0].Revents&unix.POLLHUP != 0 {
			// A last write may have come between the two looks.
			if n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ); n == 0 && err == nil {
				err = io.EOF
			}
			return true
		}
		return false
	})
	if err == nil {
		err = rerr
	}
	return min(n, spliceChunk), err
}

type rawWriter interface {
	Write(func(uintptr) bool) error
}

// intoSocket splices n bytes that the pipe is known to hold.
func intoSocket(pipe *os.File, socket rawWriter, n int) (err error) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return err
	}
	// The pipe has the bytes: only the socket can make it wait.
	return firstError(raw.Control(func(from uintptr) {
		werr := socket.Write(func(to uintptr) bool {
			for n > 0 {
				var k int64
				k, err = unix.Splice(int(from), nil, int(to), nil, n, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
				if err == unix.EAGAIN {
					err = nil
					return false
				}
				if err == unix.EINTR {
					continue
				}
				if err == nil && k == 0 {
					err = io.ErrUnexpectedEOF
				}
				if err != nil {
					return true
				}
				n -= int(k)
			}
			return true
		})
		err = firstError(err, werr)
	}), err)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// splice moves data frames from the connection into the sink's pipe. Of each
// frame the last bytes are read instead, and written before the next one, so
// that the stream's tail never reaches the pipe before its end was verified.
func (r *receiving) splice(sink PipeSink) error {
	conn := r.link.Conns()[0]
	socket, err := conn.TCP().SyscallConn()
	if err != nil {
		return err
	}
	h := holder{keep: withhold(sink)}
	f := wire.NewFrame(64 << 10)
	t := startTimer()
	for {
		n, err := conn.ReadHeader(f)
		t.add(&r.receiver.in)
		if err != nil {
			return err
		}
		if f.Kind != wire.Data {
			return r.spliceEnd(conn, f, n, h.held)
		}
		if f.Seq != r.frames || f.Flags != 0 {
			return fmt.Errorf("%w: frame %d, expected %d", ErrMiscounted, f.Seq, r.frames)
		}
		if n > h.keep && len(h.held) > 0 {
			if _, err := sink.Write(h.held); err != nil {
				return &sinkError{err}
			}
			h.held = h.held[:0]
			t.add(&r.writer.out)
		}
		rest := n
		if n > h.keep {
			if err := r.fromSocket(socket, sink, n-h.keep, &t); err != nil {
				return err
			}
			rest = h.keep
		}
		if err := conn.ReadBody(f, rest); err != nil {
			return err
		}
		t.add(&r.receiver.in)
		if err := h.write(sink, f.Payload()); err != nil {
			return &sinkError{err}
		}
		t.add(&r.writer.out)
		r.frames++
		r.receiver.bytes.Add(int64(n))
		r.writer.bytes.Add(int64(n))
		r.wired.bytes.Add(int64(n) + wire.HeaderSize)
	}
}

// spliceEnd handles what comes behind the last data frame.
func (r *receiving) spliceEnd(conn *wire.Conn, f *wire.Frame, n int, tail []byte) error {
	if err := conn.ReadBody(f, n); err != nil {
		return err
	}
	if err := conn.Check(f); err != nil {
		return err
	}
	switch f.Kind {
	case wire.End:
		e, err := parseEnding(f)
		if err != nil {
			return err
		}
		return r.release(tail, e)
	case wire.Abort:
		return &PeerError{string(f.Payload())}
	}
	return fmt.Errorf("%w: unexpected frame from the sender", wire.ErrTampered)
}

// fromSocket splices n bytes into the sink's pipe. It waits for the one of the
// two that is not ready, and so meters which of them it was.
func (r *receiving) fromSocket(socket interface {
	Read(func(uintptr) bool) error
}, sink PipeSink, n int, t *timer) error {
	pipe, err := sink.Pipe().SyscallConn()
	if err != nil {
		return &sinkError{err}
	}
	for n > 0 {
		var moved int64
		var serr error
		full := false
		err := socket.Read(func(from uintptr) bool {
			cerr := pipe.Control(func(to uintptr) {
				moved, serr = unix.Splice(int(from), nil, int(to), nil, n, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
				if serr == unix.EAGAIN {
					poll := []unix.PollFd{{Fd: int32(to), Events: unix.POLLOUT}}
					ready, perr := unix.Poll(poll, 0)
					full = perr == nil && ready == 0
				}
			})
			if cerr != nil {
				serr = cerr
			}
			return serr != unix.EAGAIN || full
		})
		t.add(&r.receiver.in)
		switch {
		case err != nil:
			return fmt.Errorf("receive: %w: %w", wire.ErrCut, err)
		case full:
			if err := pipe.Write(writableOnce()); err != nil {
				return &sinkError{err}
			}
			t.add(&r.writer.out)
		case serr == unix.EINTR:
		case serr == unix.EPIPE, errors.Is(serr, os.ErrClosed):
			return &sinkError{serr}
		case serr != nil:
			return fmt.Errorf("receive: %w: %w", wire.ErrCut, serr)
		case moved == 0:
			return fmt.Errorf("receive: %w before the stream's end", wire.ErrCut)
		default:
			n -= int(moved)
		}
	}
	return nil
}

// writableOnce makes a raw connection's Write wait until the descriptor is
// writable, and do nothing then.
func writableOnce() func(uintptr) bool {
	return func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		ready, err := unix.Poll(poll, 0)
		return err != nil || ready > 0
	}
}
