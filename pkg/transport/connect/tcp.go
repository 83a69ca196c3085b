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

// tcpCarrier moves data over authenticated connections: one host offers a listener, the other
// one dials, and each runs its half.
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

// offer opens the listener on its host.
func (m *session) offer(ctx context.Context) (ticket tcp.Ticket, err error) {
	err = m.link.listener.Do(ctx, hosts.WithRole(func(st hosts.Mover) (err error) {
		ticket, err = st.Offer(ctx, m.link.offer(m.bytes))
		return err
	}))
	return ticket, err
}

// peerEnd returns the end that connects a host's half to the other half.
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
	// windDown is how long one end may take to finish after the other failed. An interrupted
	// receive saves its state in that time.
	windDown = 30 * time.Second
	// peerLossGrace is how long after a failed dial the loss of the peer may show. The kernel
	// refuses connections to a dead listener immediately, while ssh needs longer.
	peerLossGrace = time.Second
)

// runBothEnds runs both halves and returns the root cause of a failure.
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
		case tried: // a probe has nothing to save
			timeout = peerLossGrace / 4
		case errors.Is(*errp, tcp.ErrDial):
			// Nobody will connect, so the listener need not wait. But the listener's host may
			// be lost, which explains the failure.
			timeout = peerLossGrace
		case fault.ClassOf(*errp) == fault.Refused:
			// This end never started, so the other one has nothing to save.
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
		// Data has passed this link before, so a retry may succeed.
		err = fmt.Errorf("%w: %w", tcp.ErrCut, err)
	}
	if a, b := m.sent.Digest, m.received.Digest; err == nil && a != b && a != "" && b != "" {
		err = fault.Failf("", "%w: its digest is %s at the source and %s at the target", transfer.ErrMiscounted, a, b)
	}
	return err
}
