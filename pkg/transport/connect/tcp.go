package connect

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// tcpCarrier is by authenticated connections from the one host to the other: one
// offers a listener, the other dials it, and each runs its half.
type tcpCarrier struct{}

func (tcpCarrier) choose(l *Link, source, target Side) error {
	listener, dialer := l.chooseDialer(source, target)
	l.chooseStreams(listener, dialer)
	for _, s := range []Side{listener, dialer} {
		if err := s.Facts.Takes(l.Socket); err != nil {
			return fmt.Errorf("%s: %w", s.Label(), err)
		}
	}
	switch l.Wire {
	case transport.Auto:
		l.why = "signed for raw streams of encrypted data, tls for the rest"
	case string(tcp.Plain):
		l.why = "{{trusted-link}}: bytes are neither secret nor protected against changes on the way"
	default:
		l.why = "asked for"
	}
	return l.chooseAddress(listener, dialer)
}

func (tcpCarrier) mode(l *Link) tcp.Mode { return tcp.Mode(l.Wire) }

func (tcpCarrier) limit(_ *session, limit string) string { return limit }

func (tcpCarrier) run(ctx context.Context, m *session) error {
	ticket, err := m.offer(ctx)
	if err != nil {
		return err
	}
	return m.runBothEnds(ctx, ticket)
}

// offer opens a listener on the end that listens.
func (m *session) offer(ctx context.Context) (ticket tcp.Ticket, err error) {
	err = m.link.listener.Do(ctx, hosts.WithRole(func(st hosts.Mover) (err error) {
		ticket, err = st.Offer(ctx, m.link.offer(m.bytes))
		return err
	}))
	return ticket, err
}

// peerEnd leads a host's half to the other's.
func (m *session) peerEnd(h Host, ticket tcp.Ticket) interface {
	hosts.From
	hosts.To
} {
	if h == m.link.dialer {
		return hosts.Dial{Ticket: ticket}
	}
	return hosts.Accept{Session: ticket.Session}
}

const (
	// windDown is how long one end may take to end by itself after the other
	// failed: a receive that was cut off saves its state in that time.
	windDown = 30 * time.Second
	// peerLossGrace is how long after a failed dial the loss of the other end may
	// show: the kernel answers for a dead listener at once, its remote shell not.
	peerLossGrace = time.Second
)

// runBothEnds runs both ends' halves. Its error is the cause, not its echo at the
// other end.
func (m *session) runBothEnds(ctx context.Context, ticket tcp.Ticket) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var sendErr, receiveErr error
	var wg sync.WaitGroup
	runEnd := func(h Host, t hosts.Task, res *hosts.Result, errp *error, progress func(transfer.Progress)) {
		defer wg.Done()
		*errp = h.Do(ctx, hosts.WithRole(func(st hosts.Mover) (err error) {
			*res, err = st.Transfer(ctx, t, progress)
			return err
		}))
		if *errp == nil {
			return
		}
		timeout := windDown
		switch _, tried := m.from.What.(hosts.Nothing); {
		case tried: // there is nothing to wind down
			timeout = peerLossGrace / 4
		case errors.Is(*errp, tcp.ErrDial):
			// Nobody will come: the listener need not wait. But it may be
			// gone, and that be the reason.
			timeout = peerLossGrace
		case fault.ClassOf(*errp) == fault.Refused:
			// It never began, so the other has nothing to wind down.
			timeout = peerLossGrace
		}
		time.AfterFunc(timeout, cancel)
	}
	wg.Add(2)
	go runEnd(m.from.Host, hosts.Task{From: m.from.What, To: m.peerEnd(m.from.Host, ticket)}, &m.sent, &sendErr, m.monitor.sent)
	go runEnd(m.to.Host, hosts.Task{From: m.peerEnd(m.to.Host, ticket), To: m.to.What}, &m.received, &receiveErr, func(p transfer.Progress) {
		if p.Bytes > 0 {
			m.link.used.Store(true)
		}
		m.monitor.received(p)
	})
	wg.Wait()
	err := rootCause(sendErr, receiveErr)
	if m.link.used.Load() && (errors.Is(err, tcp.ErrDial) || errors.Is(err, tcp.ErrNobody)) {
		// Data went this way before: this, too, may pass.
		err = fmt.Errorf("%w: %w", tcp.ErrCut, err)
	}
	if a, b := m.sent.Digest, m.received.Digest; err == nil && a != b && a != "" && b != "" {
		err = fault.Failf("", "%w: its digest is %s at the source and %s at the target", transfer.ErrMiscounted, a, b)
	}
	return err
}
