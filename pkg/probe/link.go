package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// Of a link that is measured: frames small enough that all of many streams get
// some in a short time, and no more of them in the sender's ring than keep every
// stream busy, as they are drained at the end, however slow the link is.
const (
	linkBlock  = 256 << 10 // bytes
	linkBlocks = 16        // in the ring at least
	perStream  = 4         // and for each stream
)

// loopbackLeast is more than the sockets hold: on a starved machine all of less
// may have arrived before the first of it is read, and no rate is left.
const loopbackLeast = 32 << 20 // bytes

// SendNoise measures one direction of an open link with the stages of a real
// transfer, from memory to ReceiveNoise's, for a time.
func SendNoise(ctx context.Context, link *tcp.Link, d time.Duration) (transfer.Result, error) {
	return watched(ctx, link, func() (transfer.Result, error) { return sendLink(ctx, link, d, linkBlocks*linkBlock) })
}

// ReceiveNoise is the other half of SendNoise, which decides how long.
func ReceiveNoise(ctx context.Context, link *tcp.Link) (transfer.Result, error) {
	return watched(ctx, link, func() (transfer.Result, error) { return receiveLink(ctx, link) })
}

// watched adds to the result of a measurement what the host was and did
// meanwhile.
func watched(ctx context.Context, link *tcp.Link, measure func() (transfer.Result, error)) (transfer.Result, error) {
	res, err := measure()
	if ctx.Err() != nil {
		return res, context.Cause(ctx)
	}
	if err != nil {
		return res, fmt.Errorf("measure the link: %w", err)
	}
	res.Pace.CPU = res.Busy()
	if res.Network != nil {
		res.Network.Interface, res.Network.InterfaceMTU = interfaceOf(link.Local())
	}
	return res, nil
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

// Options are those of noise over so many connections.
func Options(streams int) transfer.Options {
	blocks := max(linkBlocks, perStream*streams)
	return transfer.Options{Buffer: int64(blocks) * linkBlock, Block: linkBlock, Compress: "off", Stall: 30 * time.Second}
}

// Noise is what SendNoise sends, where no link is measured.
func Noise(d time.Duration) transfer.Source { return &timedSource{data: noise(linkBlock), time: d} }

// Nowhere takes Noise.
func Nowhere() transfer.Sink { return &discard{arrived: func() uint64 { return 0 }} }

// sendLink sends for a time, and not less than some bytes.
func sendLink(ctx context.Context, link *tcp.Link, d time.Duration, least uint64) (transfer.Result, error) {
	src := &timedSource{data: noise(linkBlock), time: d, least: least}
	defer src.Close()
	res, err := transfer.Send(ctx, src, link, Options(len(link.Conns())), nil)
	res.Pace = &transfer.Pace{Bytes: uint64(res.Bytes), Seconds: res.Elapsed.Seconds()}
	return res, err
}

func receiveLink(ctx context.Context, link *tcp.Link) (transfer.Result, error) {
	sink := &discard{arrived: func() uint64 { return link.Network().Received }}
	opt := Options(len(link.Conns()))
	opt.Buffer = transfer.DefaultBuffer // as what it stands for: what comes early on one stream waits there
	res, err := transfer.Receive(ctx, link, sink, opt, nil)
	res.Pace = &transfer.Pace{}
	if res.Network != nil {
		res.Pace.Bytes, res.Pace.Seconds = sink.rate(uint64(res.Bytes), res.Network.Received)
	}
	return res, err
}

// loopback measures a wire from this process to itself.
func loopback(ctx context.Context, mode tcp.Mode, d time.Duration) (t tally, err error) {
	l, err := tcp.Listen(ctx, tcp.Offer{Mode: mode, Streams: 1, Address: "127.0.0.1", Peer: "127.0.0.1", Deadline: 5 * time.Second}, nil)
	if err != nil {
		return t, err
	}
	defer l.Close()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		link, err := tcp.Dial(ctx, l.Ticket())
		if err != nil {
			return err
		}
		defer link.Close()
		_, err = sendLink(ctx, link, d, loopbackLeast)
		return err
	})
	g.Go(func() error {
		link, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		defer link.Close()
		res, err := receiveLink(ctx, link)
		t = tally{bytes: res.Pace.Bytes, seconds: res.Pace.Seconds}
		return err
	})
	err = g.Wait()
	return t, err
}

// timedSource yields the same noise until its time is up, and the least that a
// rate can be taken from, which takes longer than that on a starved machine.
type timedSource struct {
	data   []byte
	time   time.Duration // from the first read
	least  uint64        // bytes
	start  time.Time
	given  uint64
	closed atomic.Bool
}

func (s *timedSource) Read(p []byte) (int, error) {
	if s.start.IsZero() {
		s.start = time.Now()
	}
	switch {
	case s.closed.Load():
		return 0, errors.New("closed")
	case s.given >= s.least && time.Since(s.start) > s.time:
		return 0, io.EOF
	}
	n := copy(p, s.data[s.given%uint64(len(s.data)):])
	s.given += uint64(n)
	return n, nil
}

func (s *timedSource) Close() error { s.closed.Store(true); return nil }
func (s *timedSource) Name() string { return "memory" }

// discard takes the time from the first write to the last: neither making the
// connections nor waiting for the sender is part of a link's rate.
type discard struct {
	arrived     func() uint64 // so far, on all streams, frames' overhead included
	first, last time.Time
	before      uint64 // what had arrived by the first
}

func (d *discard) Write(p []byte) (int, error) {
	d.last = time.Now()
	if d.first.IsZero() {
		d.first, d.before = d.last, d.arrived()
	}
	return len(p), nil
}

// rate is what of all bytes crossed between the first write and the last. By
// the first much has come already: more of that frame's stream, and parts of
// frames on the others.
func (d *discard) rate(all, arrived uint64) (bytes uint64, seconds float64) {
	if arrived < d.before || arrived == 0 {
		return 0, 0
	}
	return uint64(float64(all) * (1 - float64(d.before)/float64(arrived))), d.last.Sub(d.first).Seconds()
}

func (d *discard) Commit(context.Context) error { return nil }
func (d *discard) Abort(error) error            { return nil }
func (d *discard) Name() string                 { return "nowhere" }
