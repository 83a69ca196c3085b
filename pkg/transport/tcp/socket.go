package tcp

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/transport"
)

// keepAlive finds an idle peer dead after 10 + 3 × 5 seconds.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}
}

// unackedTimeout is how long bytes that the receiving end of a stream sends
// may stay unacknowledged before its connection counts as cut.
//
// The sending end must not have such a limit: TCP_USER_TIMEOUT also ends
// connections whose peer answers, but keeps its window shut for that long,
// which a pool that syncs does (Linux 5.11, "tcp: fix TCP_USER_TIMEOUT with
// zero window"; https://man7.org/linux/man-pages/man7/tcp.7.html).
const unackedTimeout = 20 * time.Second

// socketControl returns a Control function that asks for what a socket is to be before
// the connection is made, as the window's scale is agreed on then. What was
// granted shows in Network.
func socketControl(s transport.Socket) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error {
			return errors.Join(setWindow(fd, int(s.Window)), setCongestion(fd, s))
		})
	}
}

// setWindow sets socket buffers; 0 leaves them to the kernel's autotuning.
func setWindow(fd, bytes int) error {
	if bytes <= 0 {
		return nil
	}
	// The forced variants go beyond net.core.*mem_max; they need CAP_NET_ADMIN.
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], bytes) == nil {
			continue
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], bytes); err != nil {
			return err
		}
	}
	return nil
}

func control(c syscall.RawConn, f func(fd int) error) error {
	var ferr error
	if err := c.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}
