package tcp

import (
	"context"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"io"
	"net"
)

// Unauthenticated is a Listener for one peer without the protocol, such as nc. The peer sends a
// secret, once and in the clear, which authenticates only the connection. The bytes that follow
// are raw data without any protection.
type Unauthenticated struct{ l *Listener }

// ListenUnauthenticated opens a listener for one such connection. It ignores Mode and Streams
// of the offer, and otherwise works like Listen.
func ListenUnauthenticated(ctx context.Context, o Offer, log func(msg string)) (*Unauthenticated, error) {
	o.Mode, o.Streams = Plain, 1
	l, err := listenFor(ctx, Kernel{}, o, log, (*session).secretAccepter, handshakeTimeout)
	if err != nil {
		return nil, err
	}
	return &Unauthenticated{l}, nil
}

// Address returns the address to connect to, "ADDRESS:PORT".
func (b *Unauthenticated) Address() string { return b.l.ticket.Address }

// Secret returns the secret that the peer sends first, followed by a line feed. Never print or
// log it.
func (b *Unauthenticated) Secret() string { return hex.EncodeToString(b.l.ticket.Secret) }

// Accept returns the connection after its secret was read. It can succeed only once. If ctx
// ends, the listener stays open.
func (b *Unauthenticated) Accept(ctx context.Context) (*net.TCPConn, error) {
	link, err := b.l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return link.conns[0].tcp.(*net.TCPConn), nil
}

// Close closes the listener, and the connection unless it was accepted.
func (b *Unauthenticated) Close() error { return b.l.Close() }

// secretAccepter returns an accepter that reads the secret and nothing after it.
func (s *session) secretAccepter() (accepter, error) { return s.acceptSecret, nil }

func (s *session) acceptSecret(c Socket, _ func()) (*Conn, error) {
	want := hex.AppendEncode(nil, s.secret)
	want = append(want, '\n')
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil {
		return nil, err
	}
	if subtle.ConstantTimeCompare(got, want) != 1 {
		return nil, errors.New("it does not start with the secret")
	}
	return newConn(0, s.mode, c, nil, nil), nil
}
