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

// ncCarrier moves data to or from a host without zxfer. The host's nc dials the local host, and
// this process moves the bytes that its tools read or write.
type ncCarrier struct{}

// ncHost has the operations of such a host. The offer describes the local listener. buffer
// bounds the memory of the host's tools in bytes.
type ncHost interface {
	OpenFrom(ctx context.Context, what hosts.From, offer tcp.Offer, buffer int64) (transfer.Source, error)
	OpenTo(ctx context.Context, what hosts.To, offer tcp.Offer, buffer int64) (transfer.Sink, error)
}

// localHost has the operations of the local host.
type localHost interface {
	OpenFrom(ctx context.Context, what hosts.From) (transfer.Source, error)
	OpenTo(ctx context.Context, what hosts.To) (transfer.Sink, error)
}

func (ncCarrier) choose(l *Link, source, target Side) error {
	local, remote := source, target
	l.dial = "target"
	if !local.Local() {
		local, remote = target, source
		l.dial = "source"
	}
	l.listener, l.dialer, l.Streams = local.Host, remote.Host, 1
	l.why = "{{trusted-link}}: through the other host's nc; bytes are neither secret nor protected against changes on the way"
	return l.chooseAddress(local, remote)
}

// mode returns plain. Only the listener's options matter.
func (ncCarrier) mode(*Link) tcp.Mode { return tcp.Plain }

// limit joins the network and the remote end, which has no meters.
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
	var local localHost
	err := m.link.listener.Do(ctx, func(st hosts.Host) error {
		local, _ = st.(localHost)
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
		remote, ok := st.(ncHost)
		if !ok || local == nil {
			return fmt.Errorf("%s: it was not reached for wire %s", m.link.dialer.Label(), transport.NC)
		}
		src, sink, err := m.open(ctx, local, remote, buffer)
		if err != nil {
			return err
		}
		defer src.Close()
		res, err := transfer.Copy(ctx, src, sink, options, m.monitor.both)
		m.account(hosts.Result{Result: res})
		if _, ok := m.from.What.(hosts.Noise); ok {
			m.setPace(res.Busy())
		}
		_ = src.Close() // if it failed, Copy has closed it
		return hosts.CauseOf(src, err)
	})
}

// setPace sets the pace of noise. busy is the number of busy processors of the local host; that
// of the remote host is unknown.
func (m *session) setPace(busy float64) {
	pace := transfer.Pace{Bytes: uint64(m.sent.Bytes), Seconds: m.sent.Elapsed.Seconds()}
	local, remote := pace, pace
	local.CPU = busy
	m.sent.Pace, m.received.Pace = &local, &remote
	if m.link.dialer == m.from.Host {
		m.sent.Pace, m.received.Pace = &remote, &local
	}
}

// open opens the remote end first. The local end opens once the remote nc has connected.
func (m *session) open(ctx context.Context, local localHost, remote ncHost, buffer int64) (src transfer.Source, sink transfer.Sink, err error) {
	if m.link.dialer == m.to.Host {
		if sink, err = remote.OpenTo(ctx, m.to.What, m.link.offer(0), buffer); err != nil {
			return nil, nil, err
		}
		if src, err = local.OpenFrom(ctx, m.from.What); err != nil {
			return nil, nil, errors.Join(err, sink.Abort(err))
		}
		return src, sink, nil
	}
	if src, err = remote.OpenFrom(ctx, m.from.What, m.link.offer(0), buffer); err != nil {
		return nil, nil, err
	}
	if sink, err = local.OpenTo(ctx, m.to.What); err != nil {
		return nil, nil, errors.Join(err, src.Close())
	}
	return src, sink, nil
}
