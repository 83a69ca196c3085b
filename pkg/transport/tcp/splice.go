package tcp

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Zero-copy from connections to pipes in mode plain, by splice(2). io.Copy cannot stop at the end of a payload.

// ErrPipe means that splicing failed at the pipe, not at the network.
var ErrPipe = errors.New("pipe broke")

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
