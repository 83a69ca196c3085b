package hosts

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"zxfer/pkg/fault"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/mux"
	"zxfer/pkg/transport/tcp"
)

// dialer is a Host whose connection also carries data.
type dialer interface {
	Dial(ctx context.Context, address string) (*mux.Stream, error)
}

// again is an Opener that needs less time for one more connection to a host that is open.
type again interface {
	OpenAgain(ctx context.Context, l Address) (Host, error)
}

// shell connects to listeners of a host through its remote shell. The first connection shares the connection of the
// host's operations. OpenSSH permits 2 MiB on their way in each connection, so further ones log in again.
type shell struct {
	conn *Conn
	used atomic.Bool // the connection of the operations is in use
}

var _ tcp.Stack = (*shell)(nil)

// Dial connects to a loopback address of the host.
func (s *shell) Dial(ctx context.Context, address string, _ transport.Socket) (_ tcp.Socket, err error) {
	var stream *mux.Stream
	if !s.used.Swap(true) {
		err = s.conn.Do(ctx, func(h Host) error { stream, err = dialThrough(ctx, h, address); return err })
		if err != nil {
			s.used.Store(false)
			return nil, err
		}
		return &sharedSocket{stream, sync.OnceFunc(func() { s.used.Store(false) })}, nil
	}
	open := s.conn.open.Open
	if o, ok := s.conn.open.(again); ok {
		open = o.OpenAgain
	}
	h, err := open(ctx, s.conn.address)
	if err != nil {
		return nil, err
	}
	if stream, err = dialThrough(ctx, h, address); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return &ownSocket{Stream: stream, host: h}, nil
}

func dialThrough(ctx context.Context, h Host, address string) (*mux.Stream, error) {
	d, ok := h.(dialer)
	if !ok {
		return nil, NotConnected(fault.Refusef("", "%s: its remote shell carries no data connections", h.Name()))
	}
	return d.Dial(ctx, address)
}

// Listen returns an error: the other host listens.
func (s *shell) Listen(context.Context, tcp.Offer) (tcp.Acceptor, error) {
	return nil, fmt.Errorf("listen behind a remote shell: %w", errors.ErrUnsupported)
}

// sharedSocket is a data connection in the remote shell of the operations.
type sharedSocket struct {
	*mux.Stream
	free func() // lets another connection use the remote shell; only its first call counts
}

// Close lets the next connection use the remote shell.
func (s *sharedSocket) Close() error {
	err := s.Stream.Close()
	s.free()
	return err
}

// ownSocket is a data connection that is alone in its remote shell.
type ownSocket struct {
	*mux.Stream
	host  Host
	ended sync.Once // the remote shell
}

// Close ends the remote shell, too, after it has sent what was written. It does not wait for that.
func (s *ownSocket) Close() error {
	err := s.Stream.Close()
	s.ended.Do(func() { go func() { _ = s.host.Close() }() })
	return err
}
