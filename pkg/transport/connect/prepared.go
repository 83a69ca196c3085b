package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transport/tcp"
)

// stream describes a stream before it is known in detail.
type stream struct {
	encrypted bool   // a raw stream of encrypted data
	bytes     uint64 // 0 = unknown
}

// Expecting returns the link for an Open that keeps its connections for the first such stream of about
// that many bytes. Otherwise Open closes them.
func (l Link) Expecting(encrypted bool, bytes uint64) Link {
	l.expected = &stream{encrypted, bytes}
	return l
}

// prepared holds connections that Open has made.
type prepared struct {
	ticket tcp.Ticket
	since  time.Time
}

// preparedFor is how long prepared connections may wait. A router may forget idle ones.
const preparedFor = 30 * time.Second

// connector is the local host.
type connector interface {
	Connect(ctx context.Context, t tcp.Ticket) error
}

// prepare makes the connections for the expected stream. It returns errors.ErrUnsupported if only a probe
// can test the path.
func (l Link) prepare(ctx context.Context) error {
	if l.expected == nil || l.carrier != (tcpCarrier{}) || !l.dialer.Local() {
		return errors.ErrUnsupported
	}
	var c connector
	// The loss of the other host must not close the local one.
	err := l.dialer.Do(ctx, func(h hosts.Host) error { c, _ = h.(connector); return nil })
	if err != nil || c == nil {
		return cmp.Or(err, errors.ErrUnsupported)
	}
	m := &session{link: l.Resolve(l.expected.encrypted), bytes: l.expected.bytes}
	ticket, err := m.offer(ctx)
	if err != nil {
		return err
	}
	if err = c.Connect(ctx, ticket); err != nil {
		return l.explainDial(ctx, ticket, err)
	}
	l.ready.Store(&prepared{ticket, time.Now()})
	return nil
}

// explainDial returns the loss of the listening host if that explains why a dial failed, and otherwise err.
func (l *Link) explainDial(ctx context.Context, t tcp.Ticket, err error) error {
	if !errors.Is(err, tcp.ErrDial) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, peerLossGrace)
	defer cancel()
	accept := hosts.Task{From: hosts.Accept{Session: t.Session}, To: hosts.Nothing{}}
	_, lost := hosts.Call(ctx, hosts.By(l.listener.Do), hosts.OpTransfer, accept)
	if errors.Is(lost, hosts.ErrLost) || errors.Is(lost, hosts.ErrNoListener) {
		return fmt.Errorf("%w: %w", hosts.ErrLost, err)
	}
	return err
}

// takePrepared returns the ticket of prepared connections that suit a stream of about that many bytes.
func (l *Link) takePrepared(bytes uint64) (tcp.Ticket, bool) {
	p := l.ready.Load()
	if p == nil || p.ticket.Mode != l.carrier.mode(l) || p.ticket.Streams != l.connections(bytes) || time.Since(p.since) > preparedFor {
		return tcp.Ticket{}, false
	}
	return p.ticket, l.ready.CompareAndSwap(p, nil)
}
