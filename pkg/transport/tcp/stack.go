package tcp

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"zxfer/pkg/fault"
	"zxfer/pkg/transport"
)

// Stack opens the sockets of listeners and dialers.
type Stack interface {
	// Listen opens a socket at the address and in the port range of an offer.
	Listen(ctx context.Context, o Offer) (Acceptor, error)
	// Dial connects to an address, "ADDRESS:PORT".
	Dial(ctx context.Context, address string, s transport.Socket) (Socket, error)
}

// Socket is a TCP connection. If SyscallConn fails, the connection works without socket options and
// without figures of the kernel, but cannot be spliced.
type Socket interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// counter is a Socket without figures of the kernel that counts its bytes itself.
type counter interface {
	Acked() uint64    // bytes that the other end has read, as far as known
	Received() uint64 // bytes that have arrived
}

// Acceptor is a listening socket.
type Acceptor interface {
	Accept() (Socket, error)
	Addr() net.Addr
	Close() error
}

// Kernel is the TCP stack of this host.
type Kernel struct{}

// Dial connects with the options of s.
func (Kernel) Dial(ctx context.Context, address string, s transport.Socket) (Socket, error) {
	d := net.Dialer{KeepAliveConfig: keepAlive(), Control: socketControl(s)}
	d.SetMultipathTCP(false)
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

type acceptor struct{ *net.TCPListener }

func (a acceptor) Accept() (Socket, error) {
	c, err := a.AcceptTCP()
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Listen listens on a port of the offered range, or of the kernel's choice. It tries the range in
// random order, so that concurrent transfers rarely collide.
func (Kernel) Listen(ctx context.Context, o Offer) (Acceptor, error) {
	addr, err := netip.ParseAddr(o.Address)
	if err != nil {
		return nil, fault.Usagef("name an IP address of the listening host", "cannot listen on %q: it is not an IP address", o.Address)
	}
	lc := net.ListenConfig{KeepAliveConfig: keepAlive(), Control: socketControl(o.Socket)}
	// Multipath TCP has no TCP_INFO per path and cannot be spliced.
	lc.SetMultipathTCP(false)
	for _, i := range mathrand.Perm(o.PortHigh - o.PortLow + 1) {
		address := net.JoinHostPort(addr.String(), strconv.Itoa(o.PortLow+i))
		l, lerr := lc.Listen(ctx, "tcp", address)
		if lerr == nil {
			return acceptor{l.(*net.TCPListener)}, nil
		}
		if err = lerr; !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	ports := "any port"
	if o.PortLow > 0 {
		ports = fmt.Sprintf("ports %d-%d", o.PortLow, o.PortHigh)
	}
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fault.Failf("{{data-address}} must name an address of the host that listens", "cannot listen on %s: this host has no such address", addr)
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fault.Failf("widen {{port-range}}, or wait until other transfers end", "cannot listen on %s, %s: all are in use", addr, ports)
	case errors.Is(err, syscall.EACCES):
		return nil, fault.Failf("choose ports above 1023 with {{port-range}}", "cannot listen on %s, %s: permission denied", addr, ports)
	}
	return nil, fmt.Errorf("cannot listen on %s, %s: %w", addr, ports, err)
}
