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

// A link is measured with small frames, so that every stream gets some in a short
// time. The sender buffers only enough to keep all streams busy, because a slow
// link must drain the buffer at the end.
const (
	linkBlock       = 256 << 10 // bytes
	minBlocks       = 16        // minimum in the buffer
	blocksPerStream = 4         // minimum per stream
)

// loopbackMin exceeds the socket buffers. If a busy machine received everything
// before the first read, there would be no rate.
const loopbackMin = 32 << 20 // bytes

// SendNoise measures one direction of an open link for the time d. It uses the
// stages of a real transfer, from memory to ReceiveNoise.
func SendNoise(ctx context.Context, link *tcp.Link, d time.Duration) (transfer.Result, error) {
	return withHost(ctx, link, func() (transfer.Result, error) { return sendLink(ctx, link, d, minBlocks*linkBlock) })
}

// ReceiveNoise receives from SendNoise, which determines the duration.
func ReceiveNoise(ctx context.Context, link *tcp.Link) (transfer.Result, error) {
	return withHost(ctx, link, func() (transfer.Result, error) { return receiveLink(ctx, link) })
}

// withHost adds the CPU use and the network interface of the host to a result.
func withHost(ctx context.Context, link *tcp.Link, measure func() (transfer.Result, error)) (transfer.Result, error) {
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

// interfaceOf returns the network interface that has the address.
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

// Options returns the transfer options for noise over the given number of streams.
func Options(streams int) transfer.Options {
	blocks := max(minBlocks, blocksPerStream*streams)
	return transfer.Options{Buffer: int64(blocks) * linkBlock, Block: linkBlock, Compress: "off", Stall: 30 * time.Second}
}

// Noise returns the source of SendNoise, for measurements without a link.
func Noise(d time.Duration) transfer.Source { return &timedSource{data: noise(linkBlock), time: d} }

// Nowhere returns a sink that discards Noise.
func Nowhere() transfer.Sink { return &discard{received: func() uint64 { return 0 }} }

// sendLink sends for the time d, and at least minBytes.
func sendLink(ctx context.Context, link *tcp.Link, d time.Duration, minBytes uint64) (transfer.Result, error) {
	src := &timedSource{data: noise(linkBlock), time: d, minBytes: minBytes}
	defer src.Close()
	res, err := transfer.Send(ctx, src, link, Options(len(link.Conns())), nil)
	res.Pace = &transfer.Pace{Bytes: uint64(res.Bytes), Seconds: res.Elapsed.Seconds()}
	return res, err
}

func receiveLink(ctx context.Context, link *tcp.Link) (transfer.Result, error) {
	sink := &discard{received: func() uint64 { return link.Network().Received }}
	opt := Options(len(link.Conns()))
	opt.Buffer = transfer.DefaultBuffer // as in a transfer: data that is early on one stream waits there
	res, err := transfer.Receive(ctx, link, sink, opt, nil)
	res.Pace = &transfer.Pace{}
	if res.Network != nil {
		res.Pace.Bytes, res.Pace.Seconds = sink.rate(uint64(res.Bytes), res.Network.Received)
	}
	return res, err
}

// loopback measures a link from this process to itself.
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
		_, err = sendLink(ctx, link, d, loopbackMin)
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

// timedSource repeats noise until its time has passed and minBytes were read. On a
// busy machine, minBytes may take longer.
type timedSource struct {
	data     []byte
	time     time.Duration // from the first read
	minBytes uint64        // bytes
	start    time.Time
	sent     uint64
	closed   atomic.Bool
}

func (s *timedSource) Read(p []byte) (int, error) {
	if s.start.IsZero() {
		s.start = time.Now()
	}
	switch {
	case s.closed.Load():
		return 0, errors.New("closed")
	case s.sent >= s.minBytes && time.Since(s.start) > s.time:
		return 0, io.EOF
	}
	n := copy(p, s.data[s.sent%uint64(len(s.data)):])
	s.sent += uint64(n)
	return n, nil
}

func (s *timedSource) Close() error { s.closed.Store(true); return nil }
func (s *timedSource) Name() string { return "memory" }

// discard measures from the first write to the last, which excludes connecting and
// waiting for the sender.
type discard struct {
	received        func() uint64 // bytes received on all streams, including frame overhead
	first, last     time.Time
	alreadyReceived uint64 // bytes received at the first write
}

func (d *discard) Write(p []byte) (int, error) {
	d.last = time.Now()
	if d.first.IsZero() {
		d.first, d.alreadyReceived = d.last, d.received()
	}
	return len(p), nil
}

// rate returns the share of all bytes that arrived between the first write and the
// last, and the seconds between them. At the first write, other streams have
// received parts of frames too, so it scales by the raw bytes.
func (d *discard) rate(all, arrived uint64) (bytes uint64, seconds float64) {
	if arrived < d.alreadyReceived || arrived == 0 {
		return 0, 0
	}
	return uint64(float64(all) * (1 - float64(d.alreadyReceived)/float64(arrived))), d.last.Sub(d.first).Seconds()
}

func (d *discard) Commit(context.Context) error { return nil }
func (d *discard) Abort(error) error            { return nil }
func (d *discard) Name() string                 { return "nowhere" }
