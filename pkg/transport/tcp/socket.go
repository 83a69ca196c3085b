package tcp

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/transport"
)

// keepAlive detects a dead peer on an idle connection after 10 + 3 × 5 seconds.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}
}

// unackedTimeout is how long bytes sent by the receiving end may stay unacknowledged before the
// connection is cut.
//
// The sending end must not have this limit. TCP_USER_TIMEOUT also ends connections whose peer
// answers but keeps its window closed for that long, as during a pool sync (Linux 5.11, "tcp:
// fix TCP_USER_TIMEOUT with zero window"; https://man7.org/linux/man-pages/man7/tcp.7.html).
const unackedTimeout = 20 * time.Second

// socketControl returns a net.Dialer Control function that sets the options of s. They must
// precede the connection, which negotiates the window scale. Network reports the granted
// values.
func socketControl(s transport.Socket) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error {
			return errors.Join(setWindow(fd, int(s.Window)), setCongestion(fd, s))
		})
	}
}

// setWindow sets the socket buffers; 0 keeps the kernel's autotuning.
func setWindow(fd, bytes int) error {
	if bytes <= 0 {
		return nil
	}
	// The forced variants exceed net.core.*mem_max and need CAP_NET_ADMIN.
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
