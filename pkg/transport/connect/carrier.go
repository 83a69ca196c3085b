package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// Local is the wire of a link within one host.
const Local = "local"

// carrier moves data over one kind of wire.
type carrier interface {
	// choose completes a link: listener, dialer and number of connections.
	choose(l *Link, source, target Side) error
	// mode returns the mode of the link's connections.
	mode(l *Link) tcp.Mode
	// run moves the data of m.
	run(ctx context.Context, m *session) error
	// limit adjusts the bottleneck that m's meters indicate.
	limit(m *session, limit string) string
}

func carrierOf(wire string) carrier {
	switch wire {
	case Local:
		return localCarrier{}
	case transport.SSH:
		return sshCarrier{}
	case transport.NC:
		return agentlessCarrier{nc: true, limits: &transfer.Limits{}}
	}
	return tcpCarrier{}
}

// localCarrier moves data within one host, without network and listener.
type localCarrier struct{}

func (localCarrier) choose(l *Link, _, _ Side) error {
	l.Streams, l.why = 0, "source and target are on the same host"
	return nil
}

func (localCarrier) mode(*Link) tcp.Mode { return "" }

func (localCarrier) limit(_ *session, limit string) string { return limit }

func (localCarrier) run(ctx context.Context, m *session) error {
	res, err := hosts.Watch(ctx, hosts.By(m.from.Host.Do), hosts.OpTransfer, hosts.Task{From: m.from.What, To: m.to.What}, m.monitor.both)
	m.account(res)
	return err
}

// tcpCarrier moves data over authenticated connections: one host offers a listener, the other
// one dials, and each runs its half.
type tcpCarrier struct{}

func (tcpCarrier) choose(l *Link, source, target Side) error {
	listener, dialer := l.chooseDialer(source, target)
	l.chooseStreams(listener, dialer)
	for _, s := range []Side{listener, dialer} {
		if err := s.Facts.Supports(l.Socket); err != nil {
			return fmt.Errorf("%s: %w", s.Label(), err)
		}
	}
	switch l.Wire {
	case transport.Auto:
		l.why = "signed for raw streams of encrypted data, tls for the rest"
	case string(tcp.Plain):
		l.why = "{{trusted-link}}: data is neither secret nor protected from modification"
	default:
		l.why = "requested"
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
	return m.connectEnds(ctx, ticket)
}

// offer opens the listener on its host.
func (m *session) offer(ctx context.Context) (tcp.Ticket, error) {
	t, err := hosts.Call(ctx, hosts.By(m.link.listener.Do), hosts.OpOffer, m.link.offer(m.bytes))
	m.failed.unconnected = errors.Is(err, hosts.ErrForbidden) // another path may be permitted
	return t, err
}

// peerEnd returns the end that connects a host's half to the other half.
func (m *session) peerEnd(h Host, ticket tcp.Ticket) interface {
	hosts.From
	hosts.To
} {
	if h == m.link.dialer {
		return hosts.Dial{Ticket: ticket, Through: m.through}
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

// half is a host's part of a transfer.
type half struct {
	on hosts.Runner
	hosts.Task
}

// connectEnds runs both halves over the connections of a ticket.
func (m *session) connectEnds(ctx context.Context, ticket tcp.Ticket) error {
	return m.runBothEnds(ctx, half{hosts.By(m.from.Host.Do), hosts.Task{From: m.from.What, To: m.peerEnd(m.from.Host, ticket)}},
		half{hosts.By(m.to.Host.Do), hosts.Task{From: m.peerEnd(m.to.Host, ticket), To: m.to.What}})
}

// runBothEnds runs both halves and returns the root cause of a failure.
func (m *session) runBothEnds(ctx context.Context, send, receive half) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var sendErr, receiveErr error
	var wg sync.WaitGroup
	runEnd := func(h half, res *hosts.Result, errp *error, progress func(transfer.Progress)) {
		defer wg.Done()
		*res, *errp = hosts.Watch(ctx, h.on, hosts.OpTransfer, h.Task, progress)
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
	go runEnd(send, &m.sent, &sendErr, m.monitor.sent)
	go runEnd(receive, &m.received, &receiveErr, m.monitor.received)
	wg.Wait()
	err := rootCause(sendErr, receiveErr)
	if err == nil {
		return m.compareDigests()
	}
	sends, receives := !errors.Is(sendErr, hosts.ErrNotConnected), !errors.Is(receiveErr, hosts.ErrNotConnected)
	caused := errors.Is(err, hosts.ErrNotConnected) || echoRank(err) > echoRank(hosts.ErrLost)
	m.failed = failure{unconnected: !(sends && receives) && caused && !errors.Is(err, hosts.ErrLost), started: sends || receives}
	return err
}

// compareDigests compares the digests of both ends.
func (m *session) compareDigests() error {
	if a, b := m.sent.Digest, m.received.Digest; a != b && a != "" && b != "" {
		return fault.Failf("", "%w: digest is %s on the source, %s on the target", transfer.ErrTotalsMismatch, a, b)
	}
	return nil
}

// sshCarrier moves data through the ssh connection. The local host connects to a listener on the remote loopback.
type sshCarrier struct{}

func (sshCarrier) choose(l *Link, source, target Side) error {
	listener, dialer := l.chooseDialer(source, target)
	l.chooseStreams(listener, dialer)
	l.why = "slower: ssh encrypts all data on one processor core per host (zxfer doctor measures the rate)"
	l.address = "127.0.0.1"
	if len(listener.Facts.Grants) == 0 {
		return nil
	}
	// A restricted key reaches only the listeners of its own agent.
	if l.requested.Streams > 1 {
		return fault.Refusef("omit {{streams}}, or open the data port: {{wire auto}}",
			"%s: a restricted key sends data through ssh with one connection, {{streams %d}} requests more", listener.Label(), l.requested.Streams)
	}
	l.Streams = 1
	return nil
}

// mode returns signed. ssh encrypts the bytes; the tags bind them to this job.
func (sshCarrier) mode(*Link) tcp.Mode { return tcp.Signed }

// LimitShell replaces a network bottleneck for transfers through ssh, because meters cannot
// distinguish the two.
const LimitShell = "ssh or network"

func (sshCarrier) limit(_ *session, limit string) string {
	if strings.HasPrefix(limit, transfer.LimitNetwork) {
		return LimitShell
	}
	return limit
}

func (sshCarrier) run(ctx context.Context, m *session) error {
	ticket, err := m.offer(ctx)
	if err != nil {
		return err
	}
	m.through = m.link.listener.Shell()
	return m.connectEnds(ctx, ticket)
}

// agentlessCarrier moves data to or from hosts without zxfer. This process moves the bytes that their
// zfs reads or writes, through the remote shell. With nc, the host's nc dials the local host instead.
type agentlessCarrier struct {
	nc     bool
	limits *transfer.Limits // of all streams over the link
}

// agentlessHost has the operations of a host without zxfer. nc describes the local listener for its nc;
// nil means through the remote shell. buffer bounds the memory of the host's tools in bytes.
type agentlessHost interface {
	Through(nc *tcp.Offer, buffer int64) hosts.Ends
}

func (c agentlessCarrier) choose(l *Link, source, target Side) error {
	local, remote := source, target
	l.dial = "target"
	if !local.Local() {
		local, remote = target, source
		l.dial = "source"
	}
	l.listener, l.dialer, l.Streams = local.Host, remote.Host, 1
	if c.nc {
		l.why = "{{trusted-link}}: through the remote host's nc; data is neither secret nor protected from modification"
		return l.chooseAddress(local, remote)
	}
	for _, s := range []Side{source, target} {
		if !s.Local() && s.Facts.NoAgent == "" {
			return fault.Refusef("run zxfer on "+s.Label(),
				"%s runs zxfer, but %s does not: data between them must pass one of them", s.Label(), l.agentless().Label())
		}
	}
	l.dial = ""
	l.why = "slower: through the remote shell, because zxfer does not run on every host" +
		without(l.requested.Ineffective(transport.OverSSH|transport.ByNC))
	return nil
}

// mode returns plain. Only the listener's options matter.
func (agentlessCarrier) mode(*Link) tcp.Mode { return tcp.Plain }

// limit joins the network and a remote end, which has no meters.
func (c agentlessCarrier) limit(m *session, limit string) string {
	network := "network"
	if !c.nc {
		network = LimitShell
	}
	switch {
	case limit == transfer.LimitTarget && !m.to.Host.Local():
		return network + " or target"
	case limit == transfer.LimitSource && !m.from.Host.Local():
		return "source or " + network
	}
	return limit
}

func (c agentlessCarrier) run(ctx context.Context, m *session) error {
	options := hosts.OptionsOf(m.from.What)
	buffer := options.Buffer
	if buffer <= 0 {
		buffer = transfer.DefaultBuffer
	}
	var nc *tcp.Offer
	if c.nc {
		offer := m.link.offer(0)
		nc = &offer
	}
	var err error
	fromErr := m.from.Host.Do(ctx, func(from hosts.Host) error {
		err = m.to.Host.Do(ctx, func(to hosts.Host) error {
			source, err := endsOf(from, nc, buffer)
			if err != nil {
				return err
			}
			target, err := endsOf(to, nc, buffer)
			if err != nil {
				return err
			}
			src, sink, err := m.open(ctx, source, target)
			if err != nil {
				return err
			}
			res, err := hosts.MoveStream(ctx, transfer.Ends{Source: src, Sink: sink}, options, c.limits, m.monitor.both)
			m.account(res)
			if _, ok := m.from.What.(hosts.Noise); ok {
				m.setPace(res.Busy())
			}
			return err
		})
		return nil // the loss of the target must not close the source's connection, which others may use
	})
	return cmp.Or(fromErr, err)
}

// endsOf returns the ends of a host that pass this process.
func endsOf(h hosts.Host, nc *tcp.Offer, buffer int64) (hosts.Ends, error) {
	switch h := h.(type) {
	case agentlessHost:
		return h.Through(nc, buffer), nil
	case hosts.Ends: // the local host
		return h, nil
	}
	return nil, fmt.Errorf("%s: data cannot pass this process", h.Name())
}

// setPace sets the pace of noise. busy is the number of busy processors of the local host; that
// of the remote host is unknown.
func (m *session) setPace(busy float64) {
	pace := transfer.NoiseRate{Bytes: uint64(m.sent.Bytes), Seconds: m.sent.Elapsed.Seconds()}
	local, remote := pace, pace
	local.CPU = busy
	m.sent.NoiseRate, m.received.NoiseRate = &local, &remote
	if m.link.dialer == m.from.Host {
		m.sent.NoiseRate, m.received.NoiseRate = &remote, &local
	}
}

// open opens a remote end first. The local end opens once the remote one is connected.
func (m *session) open(ctx context.Context, from, to hosts.Ends) (src transfer.Source, sink transfer.Sink, err error) {
	if !m.to.Host.Local() {
		if sink, err = to.OpenTo(ctx, m.to.What); err != nil {
			return nil, nil, err
		}
		if src, err = from.OpenFrom(ctx, m.from.What); err != nil {
			return nil, nil, errors.Join(err, sink.Abort(err))
		}
		return src, sink, nil
	}
	if src, err = from.OpenFrom(ctx, m.from.What); err != nil {
		return nil, nil, err
	}
	if sink, err = to.OpenTo(ctx, m.to.What); err != nil {
		return nil, nil, errors.Join(err, src.Close())
	}
	return src, sink, nil
}
