package tcp

import (
	"context"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"io"
	"net"
)

// Unauthenticated is a Listener for one peer that speaks no protocol, such as nc: what
// follows the secret is the peer's own, in both directions. Only the
// connection is authenticated, by a secret that crosses in the clear and is
// good once; nothing on it is.
type Unauthenticated struct{ l *Listener }

// ListenUnauthenticated opens a listener for one bare connection. Mode and Streams of the
// offer are ignored; all else is as for Listen.
func ListenUnauthenticated(ctx context.Context, o Offer, log func(msg string)) (*Unauthenticated, error) {
	o.Mode, o.Streams = Plain, 1
	l, err := listenFor(ctx, o, log, true, handshakeTimeout)
	if err != nil {
		return nil, err
	}
	return &Unauthenticated{l}, nil
}

// Address is where the peer connects to, "ADDRESS:PORT".
func (b *Unauthenticated) Address() string { return b.l.ticket.Address }

// Secret is what the peer writes first, followed by a line feed. It must not
// be printed or logged.
func (b *Unauthenticated) Secret() string { return hex.EncodeToString(b.l.ticket.Secret) }

// Accept returns the connection whose first bytes were the secret, from behind
// them on. It can succeed once. When ctx ends, the listener stays open.
func (b *Unauthenticated) Accept(ctx context.Context) (*net.TCPConn, error) {
	link, err := b.l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return link.conns[0].tcp, nil
}

// Close ends the listener, and the connection if it was not accepted.
func (b *Unauthenticated) Close() error { return b.l.Close() }

// errSecret is a stranger of a bare listener.
var errSecret = errors.New("it does not begin with the secret")

// checkSecret reads the secret, and not a byte more.
func (l *Listener) checkSecret(c *net.TCPConn) (*Conn, error) {
	want := hex.AppendEncode(nil, l.ticket.Secret)
	want = append(want, '\n')
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil {
		return nil, err
	}
	if subtle.ConstantTimeCompare(got, want) != 1 {
		return nil, errSecret
	}
	return newConn(0, l.ticket.Mode, c, c, nil, nil), nil
}
