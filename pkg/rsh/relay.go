package rsh

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"

	"zxfer/pkg/fault"
)

// ServeRelay is the far end of Relay: it joins a loopback address to its input
// and output. Other addresses are refused: a relay is not a way into the
// host's network.
func ServeRelay(ctx context.Context, address string, in io.Reader, out io.Writer) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil || !ap.Addr().IsLoopback() {
		return fault.Refusef("", "relay to %q: only loopback addresses are allowed", address)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("relay to %s: %w", address, err)
	}
	defer c.Close()
	if _, err := io.WriteString(out, relayWord+"\n"); err != nil {
		return err
	}
	return join(c.(*net.TCPConn), in, out)
}

// join copies both ways until the connection's peer is done. The end of in is
// passed on, as the peer may still have something to say.
func join(c *net.TCPConn, in io.Reader, out io.Writer) error {
	go func() {
		_, _ = io.Copy(c, in) // a failure shows to the other direction
		_ = c.CloseWrite()
	}()
	_, err := io.Copy(out, c)
	return err
}

// ListenRelay opens a listener on this host's loopback that relays every
// connection to a loopback address of the other host. It closes when ctx ends.
func ListenRelay(ctx context.Context, o Options, address string) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				far, err := Relay(ctx, o, address)
				if err != nil {
					o.Log(fmt.Sprintf("%s: relay: %v", o.Host, err))
					return
				}
				stop := context.AfterFunc(ctx, func() { _ = c.Close() })
				defer stop()
				go func() {
					_, _ = io.Copy(far, c)
					_ = far.CloseWrite()
				}()
				_, _ = io.Copy(c, far)
				_ = far.Close() // what it says was logged
			}()
		}
	}()
	return l.Addr().String(), nil
}
