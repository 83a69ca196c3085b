package connect

import (
	"context"

	"zxfer/pkg/hosts"
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
		return ncCarrier{}
	}
	return tcpCarrier{}
}

// localCarrier moves data within one host, without network and listener.
type localCarrier struct{}

func (localCarrier) choose(l *Link, _, _ Side) error {
	l.Streams, l.why = 0, "source and target are on one host"
	return nil
}

func (localCarrier) mode(*Link) tcp.Mode { return "" }

func (localCarrier) limit(_ *session, limit string) string { return limit }

func (localCarrier) run(ctx context.Context, m *session) error {
	res, err := hosts.Watch(ctx, hosts.By(m.from.Host.Do), hosts.OpTransfer, hosts.Task{From: m.from.What, To: m.to.What}, m.monitor.both)
	m.account(res)
	return err
}
