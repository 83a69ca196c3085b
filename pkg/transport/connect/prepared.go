package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
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
// that many bytes. Otherwise Open closes them. Call Release once no such stream can start any more.
func (l Link) Expecting(encrypted bool, bytes uint64) Link {
	l.expected = &stream{encrypted, bytes}
	return l
}

// prepared holds connections that Open has made.
type prepared struct {
	ticket           tcp.Ticket
	dialer, listener hosts.Host // that made them
	expiry           *time.Timer
}

const (
	// preparedFor is how long prepared connections may wait. A router may forget idle ones.
	preparedFor = 30 * time.Second
	// closeTimeout limits how long the listening host may take to close its end.
	closeTimeout = 5 * time.Second
)

// connector is the local host.
type connector interface {
	hosts.Host
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
	p, link := &prepared{}, l.Resolve(l.expected.encrypted)
	err = l.listener.Do(ctx, func(h hosts.Host) (err error) {
		p.listener = h
		p.ticket, err = hosts.Call(ctx, h, hosts.OpOffer, link.offer(l.expected.bytes))
		return err
	})
	if err != nil {
		return err
	}
	if err = c.Connect(ctx, p.ticket); err != nil {
		return l.explainDial(ctx, p.ticket, err)
	}
	p.dialer = c
	p.expiry = time.AfterFunc(preparedFor, func() { l.release(p) })
	l.ready.Store(p)
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

// Suits reports whether Open kept connections for a stream of about that many bytes.
func (l Link) Suits(encrypted bool, bytes uint64) bool {
	l = l.Resolve(encrypted)
	return l.suitable(bytes) != nil
}

// suitable returns the prepared connections that suit a stream of about that many bytes, or nil.
func (l *Link) suitable(bytes uint64) *prepared {
	p := l.ready.Load()
	if p == nil || p.ticket.Mode != l.carrier.mode(l) || p.ticket.Streams != l.connections(bytes) {
		return nil
	}
	return p
}

// takePrepared returns the ticket of prepared connections that suit a stream of about that many bytes.
func (l *Link) takePrepared(bytes uint64) (tcp.Ticket, bool) {
	p := l.suitable(bytes)
	if p == nil || !l.ready.CompareAndSwap(p, nil) {
		return tcp.Ticket{}, false
	}
	p.expiry.Stop()
	return p.ticket, true
}

// Release closes the connections that Open kept, at both ends, unless a stream uses them. It does not wait.
func (l Link) Release() {
	if l.ready == nil { // no link was chosen
		return
	}
	if p := l.ready.Load(); p != nil {
		p.expiry.Stop()
		go l.release(p)
	}
}

func (l *Link) release(p *prepared) {
	if !l.ready.CompareAndSwap(p, nil) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var ends sync.WaitGroup
	// A host whose connection was lost has closed its end, so zxfer does not connect to it again.
	closeEnd := func(h hosts.Host, t hosts.Task) {
		ends.Go(func() { _, _ = hosts.Call(ctx, h, hosts.OpTransfer, t) })
	}
	closeEnd(p.dialer, hosts.Task{From: hosts.Nothing{}, To: hosts.Dial{Ticket: p.ticket}})
	closeEnd(p.listener, hosts.Task{From: hosts.Accept{Session: p.ticket.Session}, To: hosts.Nothing{}})
	ends.Wait()
}
