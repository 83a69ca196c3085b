package probe

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/transfer"
	"zxfer/pkg/wire"
)

// buffer is the ring of each side while a link is measured, in bytes: enough
// to keep the connection busy, and little to be drained at the end.
const buffer = 16 << 20

// Link measures one direction of an open link with the stages of a real
// transfer, from memory to memory; the sender decides how long.
func Link(ctx context.Context, r Request, link *wire.Link) (Ceiling, error) {
	return measure(ctx, r, func(ctx context.Context, d time.Duration) (t tally, err error) {
		if r.ID == LinkSend {
			t, err = sendLink(ctx, link, d)
		} else {
			t, err = receiveLink(ctx, link)
		}
		if t.network != nil {
			t.network.Interface, t.network.InterfaceMTU = interfaceOf(link.Local())
		}
		return t, err
	})
}

// interfaceOf finds the network interface that has an address.
func interfaceOf(local netip.Addr) (name string, mtu int) {
	all, err := net.Interfaces()
	if err != nil {
		return "", 0
	}
	for _, i := range all {
		addresses, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == local.WithZone("") {
				return i.Name, i.MTU
			}
		}
	}
	return "", 0
}

func options() transfer.Options {
	return transfer.Options{Buffer: buffer, Compress: "off", Stall: 30 * time.Second}
}

func sendLink(ctx context.Context, link *wire.Link, d time.Duration) (tally, error) {
	src := &timedSource{data: noise(block), end: time.Now().Add(d)}
	defer src.Close()
	res, err := transfer.Send(ctx, src, link, options(), nil)
	return tally{bytes: uint64(res.Bytes), seconds: res.Elapsed.Seconds(), network: res.Network, stages: res.Stages}, err
}

func receiveLink(ctx context.Context, link *wire.Link) (tally, error) {
	sink := &discard{}
	res, err := transfer.Receive(ctx, link, sink, options(), nil)
	// The rate from the first byte to the last: the connection's making and
	// the wait for the sender are no part of it.
	n, s := sink.rate()
	return tally{bytes: n, seconds: s, network: res.Network, stages: res.Stages}, err
}

// loopback measures a wire from this process to itself.
func loopback(ctx context.Context, mode wire.Mode, d time.Duration) (t tally, err error) {
	l, err := wire.Listen(ctx, wire.Offer{Mode: mode, Streams: 1, Address: "127.0.0.1", Peer: "127.0.0.1", Deadline: 5 * time.Second}, nil)
	if err != nil {
		return t, err
	}
	defer l.Close()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		link, err := wire.Dial(ctx, l.Ticket())
		if err != nil {
			return err
		}
		defer link.Close()
		_, err = sendLink(ctx, link, d)
		return err
	})
	g.Go(func() error {
		link, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		defer link.Close()
		t, err = receiveLink(ctx, link)
		return err
	})
	err = g.Wait()
	t.network, t.stages = nil, nil // of no interest
	return t, err
}

// timedSource yields the same noise until its time is up.
type timedSource struct {
	data   []byte
	at     int
	end    time.Time
	closed atomic.Bool
}

func (s *timedSource) Read(p []byte) (int, error) {
	switch {
	case s.closed.Load():
		return 0, errors.New("closed")
	case time.Now().After(s.end):
		return 0, io.EOF
	}
	n := copy(p, s.data[s.at:])
	s.at = (s.at + n) % len(s.data)
	return n, nil
}

func (s *timedSource) Close() error { s.closed.Store(true); return nil }
func (s *timedSource) Name() string { return "memory" }

// discard counts what arrives.
type discard struct {
	first, last time.Time
	bytes       uint64 // after the first write, whose time is not known
}

func (d *discard) Write(p []byte) (int, error) {
	d.last = time.Now()
	if d.first.IsZero() {
		d.first = d.last
	} else {
		d.bytes += uint64(len(p))
	}
	return len(p), nil
}

func (d *discard) rate() (bytes uint64, seconds float64) {
	return d.bytes, d.last.Sub(d.first).Seconds()
}

func (d *discard) Commit(context.Context) error { return nil }
func (d *discard) Abort(error) error            { return nil }
func (d *discard) Name() string                 { return "nowhere" }
