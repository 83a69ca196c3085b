package hosts

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// dialer is a Host whose connection also carries data.
type dialer interface {
	Dial(ctx context.Context, address string) (tcp.Socket, error)
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
func (s *shell) Dial(ctx context.Context, address string, _ transport.Socket) (c tcp.Socket, err error) {
	if !s.used.Swap(true) {
		err = s.conn.Do(ctx, func(h Host) error { c, err = dialThrough(ctx, h, address); return err })
		return c, err
	}
	open := s.conn.open.Open
	if o, ok := s.conn.open.(again); ok {
		open = o.OpenAgain
	}
	h, err := open(ctx, s.conn.address)
	if err != nil {
		return nil, err
	}
	if c, err = dialThrough(ctx, h, address); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return &ownSocket{c, h}, nil
}

func dialThrough(ctx context.Context, h Host, address string) (tcp.Socket, error) {
	d, ok := h.(dialer)
	if !ok {
		return nil, fault.Refusef("", "%s: its remote shell carries no data connections", h.Name())
	}
	return d.Dial(ctx, address)
}

// Listen returns an error: the other host listens.
func (s *shell) Listen(context.Context, tcp.Offer) (tcp.Acceptor, error) {
	return nil, fmt.Errorf("listen behind a remote shell: %w", errors.ErrUnsupported)
}

// ownSocket is a data connection that is alone in its remote shell.
type ownSocket struct {
	tcp.Socket
	host Host
}

// closeDelay is the time in which the remote shell sends what was written, such as the confirmation of a stream. The
// job waits for the other end, which needs it.
const closeDelay = 5 * time.Second

// Close ends the remote shell, too, after closeDelay. It does not wait for that.
func (s *ownSocket) Close() error {
	err := s.Socket.Close()
	time.AfterFunc(closeDelay, func() { _ = s.host.Close() })
	return err
}
