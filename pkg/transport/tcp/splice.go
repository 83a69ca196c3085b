package tcp

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Zero-copy between pipes and connections in mode plain, by splice(2). io.Copy splices only
// from a socket to a pipe, and cannot stop at the end of a payload.

// ErrPipe means that splicing failed at the pipe, not at the network.
var ErrPipe = errors.New("pipe broke")

// SpliceFrom sends one Data frame. Its payload is the next h.Raw bytes of a pipe, which must
// already hold them.
func (c *Conn) SpliceFrom(h Header, pipe syscall.RawConn) error {
	if c.mode != Plain {
		return errors.New("only mode plain can move data without reading it")
	}
	socket, err := c.tcp.SyscallConn()
	if err != nil {
		return c.sendError(err)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.broken {
		return c.sendError(io.ErrClosedPipe)
	}
	h.Payload = int(h.Raw)
	var head [HeaderSize]byte
	h.put(head[:])
	todo, left := head[:], h.Payload
	var serr error
	// Do not hold the pipe while waiting for the socket, because closing the pipe would wait,
	// too.
	err = socket.Write(func(to uintptr) bool {
		c.writeWait.Stop()
		todo, left, serr = c.spliceSome(int(to), pipe, todo, left)
		if serr == unix.EAGAIN {
			c.writeWait.Start()
			return false
		}
		return true
	})
	c.writeWait.Stop()
	if serr != nil || err != nil {
		c.broken = true
		return c.sendError(errors.Join(serr, err))
	}
	c.sent++
	c.out.add(h)
	c.wireBytes.Add(int64(HeaderSize + h.Payload))
	return nil
}

// spliceSome sends the rest of a header and payload until the socket is full (EAGAIN).
func (c *Conn) spliceSome(to int, pipe syscall.RawConn, head []byte, left int) ([]byte, int, error) {
	for len(head) > 0 {
		n, err := unix.SendmsgN(to, head, nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return head, left, err
		}
		head = head[n:]
	}
	for left > 0 {
		var n int64
		err := control(pipe, func(from int) (err error) {
			n, err = unix.Splice(from, nil, to, nil, left, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
			return err
		})
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN: // the pipe holds the bytes, so the socket is full
			return head, left, err
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.ETIMEDOUT):
			return head, left, err
		case err != nil:
			return head, left, fmt.Errorf("%w: %w", ErrPipe, err)
		case n == 0:
			return head, left, fmt.Errorf("%w: %d bytes missing", ErrPipe, left)
		default:
			left -= int(n)
		}
	}
	return head, left, nil
}

// SpliceTo moves the next n bytes of a Data frame's payload to a pipe. full counts the wait for
// room in the pipe. Errors of the pipe match ErrPipe, all others ErrConnectionLost.
func (c *Conn) SpliceTo(pipe syscall.RawConn, n int, full *WaitTimer) error {
	socket, err := c.tcp.SyscallConn()
	if err != nil {
		return c.receiveError(err)
	}
	for short := false; n > 0; short = true {
		if c.interrupted.Load() {
			return c.receiveError(os.ErrDeadlineExceeded)
		}
		c.setLowat(n, short)
		moved, err := c.spliceOnce(socket, pipe, n)
		switch {
		case err == errPipeFull:
			full.Start()
			err := pipe.Write(func(fd uintptr) bool { return ready(int(fd), unix.POLLOUT) })
			full.Stop()
			if err != nil {
				return fmt.Errorf("%w: %w", ErrPipe, err)
			}
		case err == unix.EINTR:
		case errors.Is(err, ErrPipe):
			return err
		case err != nil:
			return c.receiveError(err)
		case moved == 0:
			return c.receiveError(io.ErrUnexpectedEOF)
		}
		n -= moved
		c.wireBytes.Add(int64(moved))
	}
	return nil
}

var errPipeFull = errors.New("pipe is full")

// spliceOnce waits for bytes on the socket and moves some of them. If the pipe is full, it
// returns errPipeFull.
func (c *Conn) spliceOnce(socket, pipe syscall.RawConn, n int) (int, error) {
	var moved int64
	var serr error
	err := socket.Read(func(from uintptr) bool {
		c.readWait.Stop()
		serr = nil
		perr := control(pipe, func(to int) error {
			moved, serr = trySplice(int(from), to, n)
			return nil
		})
		switch {
		case perr != nil:
			serr = fmt.Errorf("%w: %w", ErrPipe, perr)
		case serr == unix.EPIPE, serr == unix.EBADF:
			serr = fmt.Errorf("%w: %w", ErrPipe, serr)
		case serr == unix.EAGAIN:
			c.readWait.Start()
			return false
		}
		return true
	})
	c.readWait.Stop()
	if serr == nil || serr == unix.EAGAIN {
		serr = err
	}
	return int(max(moved, 0)), serr
}

// trySplice moves up to n bytes from a socket to a pipe without waiting. EAGAIN means that the
// socket is empty, errPipeFull that the pipe is full.
func trySplice(from, to, n int) (int64, error) {
	for {
		moved, err := unix.Splice(from, nil, to, nil, n, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if err != unix.EAGAIN {
			return moved, err
		}
		// Find out which one was not ready. If both are by now, try again: waiting would miss a
		// change that has already happened.
		if !ready(to, unix.POLLOUT) {
			return 0, errPipeFull
		}
		if !ready(from, unix.POLLIN) {
			return 0, err
		}
	}
}

// ready reports whether a descriptor is ready or broken. Neither needs a wait.
func ready(fd int, events int16) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: events}}
	n, err := unix.Poll(poll, 0)
	return n > 0 || err != nil && err != unix.EINTR
}

// WaitPipe waits until a pipe holds bytes and returns how many. It returns io.EOF if the pipe
// is empty and has no writers. empty counts the wait.
func WaitPipe(pipe syscall.RawConn, empty *WaitTimer) (n int, err error) {
	rerr := pipe.Read(func(fd uintptr) bool {
		empty.Stop()
		for {
			// TIOCINQ is FIONREAD. On a pipe it does not distinguish empty from ended.
			if n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ); n > 0 || err != nil {
				return true
			}
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			_, perr := unix.Poll(poll, 0)
			switch {
			case perr == unix.EINTR:
			case perr != nil:
				err = perr
				return true
			case poll[0].Revents&unix.POLLIN != 0: // arrived between the two calls
			case poll[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0:
				err = io.EOF
				return true
			default:
				empty.Start()
				return false
			}
		}
	})
	empty.Stop()
	if err == nil {
		err = rerr
	}
	return n, err
}
