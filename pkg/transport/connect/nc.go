package connect

import (
	"context"
	"errors"
	"fmt"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// ncCarrier is to or from a host without zxfer: its nc dials this host, and what
// its tools read or write is an end in this process.
type ncCarrier struct{}

// tools is the Site of such a host. offer is of the listener here; buffer is
// the memory in bytes that its tools may take.
type tools interface {
	OpenFrom(ctx context.Context, what hosts.From, offer tcp.Offer, buffer int64) (transfer.Source, error)
	OpenTo(ctx context.Context, what hosts.To, offer tcp.Offer, buffer int64) (transfer.Sink, error)
}

// process is the Site of this host, whose ends this process opens.
type process interface {
	OpenFrom(ctx context.Context, what hosts.From) (transfer.Source, error)
	OpenTo(ctx context.Context, what hosts.To) (transfer.Sink, error)
}

func (ncCarrier) choose(l *Link, source, target Side) error {
	near, far := source, target
	l.dial = "target"
	if !near.Local() {
		near, far = target, source
		l.dial = "source"
	}
	l.listener, l.dialer, l.Streams = near.Host, far.Host, 1
	l.why = "{{trusted-link}}: through the other host's nc; bytes are neither secret nor protected against changes on the way"
	return l.chooseAddress(near, far)
}

// mode is plain, of which only the listener's options count.
func (ncCarrier) mode(*Link) tcp.Mode { return tcp.Plain }

// limit tells the end that is not here, and has no meters, and the network as
// one.
func (ncCarrier) limit(m *session, limit string) string {
	switch {
	case limit == transfer.LimitTarget && m.link.dialer == m.to.Host:
		return "network or target"
	case limit == transfer.LimitSource && m.link.dialer == m.from.Host:
		return "source or network"
	}
	return limit
}

func (ncCarrier) run(ctx context.Context, m *session) error {
	var here process
	err := m.link.listener.Do(ctx, func(st hosts.Host) error {
		here, _ = st.(process)
		return nil
	})
	if err != nil {
		return err
	}
	options := hosts.OptionsOf(m.from.What)
	buffer := options.Buffer
	if buffer <= 0 {
		buffer = transfer.DefaultBuffer
	}
	return m.link.dialer.Do(ctx, func(st hosts.Host) (err error) {
		there, ok := st.(tools)
		if !ok || here == nil {
			return fmt.Errorf("%s: it was not reached for wire %s", m.link.dialer.Label(), transport.NC)
		}
		src, sink, err := m.open(ctx, here, there, buffer)
		if err != nil {
			return err
		}
		defer src.Close()
		res, err := transfer.Copy(ctx, src, sink, options, m.monitor.both)
		m.account(hosts.Result{Result: res})
		if _, ok := m.from.What.(hosts.Noise); ok {
			m.pace(res.Busy())
		}
		_ = src.Close() // failed, Copy has closed it
		return hosts.CauseOf(src, err)
	})
}

// pace tells how fast noise crossed, with so many processors of this host busy;
// what it took of the other is not known.
func (m *session) pace(busy float64) {
	pace := transfer.Pace{Bytes: uint64(m.sent.Bytes), Seconds: m.sent.Elapsed.Seconds()}
	here, there := pace, pace
	here.CPU = busy
	m.sent.Pace, m.received.Pace = &here, &there
	if m.link.dialer == m.from.Host {
		m.sent.Pace, m.received.Pace = &there, &here
	}
}

// open opens both ends, that of the other host first: what is here begins when
// its nc has come.
func (m *session) open(ctx context.Context, here process, there tools, buffer int64) (src transfer.Source, sink transfer.Sink, err error) {
	if m.link.dialer == m.to.Host {
		if sink, err = there.OpenTo(ctx, m.to.What, m.link.offer(0), buffer); err != nil {
			return nil, nil, err
		}
		if src, err = here.OpenFrom(ctx, m.from.What); err != nil {
			return nil, nil, errors.Join(err, sink.Abort(err))
		}
		return src, sink, nil
	}
	if src, err = there.OpenFrom(ctx, m.from.What, m.link.offer(0), buffer); err != nil {
		return nil, nil, err
	}
	if sink, err = here.OpenTo(ctx, m.to.What); err != nil {
		return nil, nil, errors.Join(err, src.Close())
	}
	return src, sink, nil
}
