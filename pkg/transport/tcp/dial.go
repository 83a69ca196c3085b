package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/fault"
)

// dialHint lists the usual remedies.
const dialHint = "open ports in the firewall and name them: {{port-range LOW-HIGH}}\n" +
	"connect in the other direction: {{dial source}} or {{dial target}}\n" +
	"use another address of the listening host: {{data-address ADDRESS}}"

// redialPause is the pause before a dropped connection is tried again. A flooded listener drops
// connections.
const redialPause = 200 * time.Millisecond

// Dial opens all connections of a ticket. If ctx ends, the error is its cause. Otherwise it
// matches ErrDial, names both addresses and the failure, and has a hint (see fault.HintOf).
func Dial(ctx context.Context, s Stack, t Ticket) (*Link, error) {
	d := &dialer{stack: s, ticket: t, timeout: t.Deadline}
	if d.timeout <= 0 {
		d.timeout = defaultDeadline
	}
	session, err := t.check()
	if err == nil {
		d.handshake, err = session.handshaker()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDial, err)
	}
	timed, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	conns := make([]*Conn, t.Streams)
	g, gctx := errgroup.WithContext(timed)
	for i := range conns {
		g.Go(func() (err error) {
			conns[i], err = d.open(gctx, i)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		closeAll(conns)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	return newLink(t.Mode, t.Socket, conns), nil
}

type dialer struct {
	stack     Stack
	ticket    Ticket
	handshake handshaker
	timeout   time.Duration
}

// open makes one connection. If it was accepted and dropped, open retries: the listener may be
// flooded.
func (d *dialer) open(ctx context.Context, stream int) (*Conn, error) {
	var previous error // error of the previous attempt
	fail := func(err error, local string) error {
		if ctx.Err() != nil && previous != nil {
			err = previous // it explains more than a timeout of this attempt
		}
		return d.dialError(err, local)
	}
	for {
		c, err := d.stack.Dial(ctx, d.ticket.Address, d.ticket.Socket)
		if err != nil {
			return nil, fail(err, localAddressFor(d.ticket.Address))
		}
		conn, err := d.authenticate(ctx, c, stream)
		if err == nil {
			return conn, nil
		}
		local := c.LocalAddr().String()
		_ = c.Close() // the handshake's error counts
		dropped := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
		if !dropped {
			return nil, fail(err, local)
		}
		previous = err
		select {
		case <-ctx.Done():
			return nil, fail(err, local)
		case <-time.After(redialPause):
		}
	}
}

// authenticate runs the handshake of a new connection.
func (d *dialer) authenticate(ctx context.Context, tcp Socket, stream int) (*Conn, error) {
	// A relay accepts immediately, and only then logs in to its remote host.
	stop := context.AfterFunc(ctx, func() { _ = tcp.SetDeadline(pastDeadline()) })
	conn, err := d.handshake(tcp, stream)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return conn, tcp.SetDeadline(time.Time{})
}

// dialError explains a failed connection attempt.
func (d *dialer) dialError(err error, local string) error {
	if fault.ClassOf(err) == fault.Refused { // this host refused a socket option
		return fmt.Errorf("%w to %s (tcp): %w", ErrDial, d.ticket.Address, err)
	}
	why := err
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		why = errors.New("connection refused")
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		why = errors.New("unreachable")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		why = errors.New("the connection was accepted and then dropped")
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		why = fmt.Errorf("timeout: no answer within %s", d.timeout)
	}
	return fault.Failf(dialHint, "%w to %s (tcp) from %s: %w", ErrDial, d.ticket.Address, local, why)
}

// localAddressFor returns the local address that a connection to address would have.
func localAddressFor(address string) string {
	// Connecting a UDP socket consults the routes and sends nothing.
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

func closeAll(conns []*Conn) {
	for _, c := range conns {
		if c != nil {
			_ = c.tcp.Close()
		}
	}
}
