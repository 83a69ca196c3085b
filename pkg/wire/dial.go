package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/fault"
)

// Dial opens all connections of a ticket. Errors match ErrDial, name the
// address, port and local address tried, and hint at the ways around.
func Dial(ctx context.Context, t Ticket) (*Link, error) {
	if modeByte[t.Mode] == 0 || t.Streams < 1 || t.Streams > maxStreams {
		return nil, fmt.Errorf("%w: the ticket is malformed", ErrDial)
	}
	if t.Deadline <= 0 {
		t.Deadline = defaultDeadline
	}
	var config *tls.Config
	if t.Mode == TLS {
		own, err := t.dialerIdentity()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDial, err)
		}
		config = pinned(own, t.ServerPin)
	}
	ctx, cancel := context.WithTimeout(ctx, t.Deadline)
	defer cancel()
	conns := make([]*Conn, t.Streams)
	g, gctx := errgroup.WithContext(ctx)
	for i := range conns {
		g.Go(func() (err error) {
			conns[i], err = dialOne(gctx, &t, config, i)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		closeAll(conns)
		return nil, err
	}
	return newLink(t.Mode, conns), nil
}

func dialOne(ctx context.Context, t *Ticket, config *tls.Config, index int) (*Conn, error) {
	d := net.Dialer{Timeout: t.Deadline}
	c, err := d.DialContext(ctx, "tcp", t.Address)
	if err != nil {
		return nil, unreachable(t, err)
	}
	tcp := c.(*net.TCPConn)
	conn, err := prove(ctx, tcp, t, config, index)
	if err != nil {
		_ = tcp.Close()
		return nil, fmt.Errorf("%w to %s from %s: %w", ErrDial, t.Address, tcp.LocalAddr(), err)
	}
	conn.tcp = tcp
	return conn, nil
}

func prove(ctx context.Context, c *net.TCPConn, t *Ticket, config *tls.Config, index int) (*Conn, error) {
	if err := tune(c, t.Window); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var rw net.Conn = c
	if config != nil {
		tc := tls.Client(c, config)
		if err := tc.Handshake(); err != nil {
			return nil, err
		}
		rw = tc
	}
	return introduce(rw, t, index)
}

// unreachable explains a connection that could not be made.
func unreachable(t *Ticket, err error) error {
	why := err.Error()
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%w to %s: %w", ErrDial, t.Address, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		why = "refused"
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		why = fmt.Sprintf("no answer within %s", t.Deadline)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		why = "unreachable"
	}
	return fault.Failf("a firewall between the two? Open a port and name it: --port-range LOW-HIGH\n"+
		"turn the direction around: --dial target or --dial source; use another address: --data-address ADDR\n"+
		"or go through ssh: --wire ssh",
		"%w to %s from %s: %s", ErrDial, t.Address, localFor(t.Address), why)
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// localFor is the local address that a connection to address starts from.
func localFor(address string) string {
	// Connecting a datagram socket sends nothing; it only asks the routes.
	c, err := net.Dial("udp", address)
	if err != nil {
		return "this host, which has no route to it"
	}
	defer c.Close()
	host, _, err := net.SplitHostPort(c.LocalAddr().String())
	if err != nil {
		return c.LocalAddr().String()
	}
	return host
}
