package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/sysinfo"
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
	res.NoiseRate.CPU = res.Busy()
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

// Discard returns a sink that discards Noise.
func Discard() transfer.Sink { return &discard{received: func() uint64 { return 0 }} }

// sendLink sends for the time d, and at least minBytes.
func sendLink(ctx context.Context, link *tcp.Link, d time.Duration, minBytes uint64) (transfer.Result, error) {
	src := &timedSource{data: noise(linkBlock), time: d, minBytes: minBytes}
	defer src.Close()
	res, err := transfer.Send(ctx, src, link, Options(len(link.Conns())), nil)
	res.NoiseRate = &transfer.NoiseRate{Bytes: uint64(res.Bytes), Seconds: res.Elapsed.Seconds()}
	return res, err
}

func receiveLink(ctx context.Context, link *tcp.Link) (transfer.Result, error) {
	sink := &discard{received: func() uint64 { return link.Network().Received }}
	opt := Options(len(link.Conns()))
	opt.Buffer = transfer.DefaultBuffer // as in a transfer: data that is early on one stream waits there
	res, err := transfer.Receive(ctx, link, sink, opt, nil)
	res.NoiseRate = &transfer.NoiseRate{}
	if res.Network != nil {
		res.NoiseRate.Bytes, res.NoiseRate.Seconds = sink.rate(uint64(res.Bytes), res.Network.Received)
	}
	return res, err
}

// loopback measures a link from this process to itself.
func loopback(ctx context.Context, mode tcp.Mode, d time.Duration) (t tally, err error) {
	l, err := tcp.Listen(ctx, tcp.Kernel{}, tcp.Offer{Mode: mode, Streams: 1, Address: "127.0.0.1", Peer: "127.0.0.1", Deadline: 5 * time.Second}, nil)
	if err != nil {
		return t, err
	}
	defer l.Close()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		link, err := tcp.Dial(ctx, tcp.Kernel{}, l.Ticket())
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
		t = tally{bytes: res.NoiseRate.Bytes, seconds: res.NoiseRate.Seconds}
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

// listenWait limits the wait for nc to listen.
const listenWait = 3 * time.Second

// listenArgs returns the arguments that make nc listen on a loopback port.
func listenArgs(dialect string, port int) []string {
	p := strconv.Itoa(port)
	switch dialect {
	case sysinfo.OpenBSD, sysinfo.Ncat:
		return []string{"-l", "127.0.0.1", p}
	}
	return []string{"-l", "-p", p, "-s", "127.0.0.1"}
}

// netcat measures the output of a program through the host's nc. Both ends run on
// this host. Administrators use such a test to learn the speed of nc.
func netcat(ctx context.Context, d time.Duration, producer ...string) (t tally, err error) {
	nc, source := find("nc"), find(producer[0])
	if nc == "" || source == "" {
		return t, skip("nc or %s is not installed", producer[0])
	}
	help, _ := output(ctx, []string{"nc", "-h"}) // its exit status differs by dialect
	dialect := sysinfo.NCDialect(help)
	t.note = "nc is " + dialect
	port, err := freePort()
	if err != nil {
		return t, err
	}
	ctx, cancel := context.WithTimeout(ctx, d+listenWait+5*time.Second)
	defer cancel()

	listener := command(ctx, nc, listenArgs(dialect, port)...)
	out, err := listener.StdoutPipe()
	if err != nil {
		return t, err
	}
	// nc may exit when its standard input ends.
	idle, err := listener.StdinPipe()
	if err != nil {
		return t, err
	}
	defer idle.Close()
	if err := listener.Start(); err != nil {
		return t, err
	}
	defer stop(listener, cancel)
	if !waitListening(ctx, port) {
		return t, skip("nc (%s) does not listen with %s", dialect, strings.Join(listenArgs(dialect, port), " "))
	}
	read, write, err := os.Pipe()
	if err != nil {
		return t, err
	}
	pump := command(ctx, source, producer[1:]...)
	pump.Stdout = write
	dial := command(ctx, nc, "127.0.0.1", strconv.Itoa(port))
	dial.Stdin = read
	err = pump.Start()
	if err == nil {
		defer stop(pump, cancel)
		if err = dial.Start(); err == nil {
			defer stop(dial, cancel)
		}
	}
	_, _ = read.Close(), write.Close() // the programs have inherited them
	if err != nil {
		return t, err
	}
	timer := time.AfterFunc(d, cancel)
	defer timer.Stop()
	start := time.Now()
	n, _ := io.Copy(io.Discard, out) // ends when nc is killed
	t.bytes, t.seconds = uint64(n), time.Since(start).Seconds()
	if n == 0 {
		return t, skip("no data passed through nc (%s)", dialect)
	}
	return t, nil
}

// stop kills a program and waits for it.
func stop(cmd *exec.Cmd, cancel context.CancelFunc) {
	cancel()
	_ = cmd.Wait() // it was killed
}

func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// waitListening waits until a port of this host listens. It does not connect,
// because nc accepts only one connection.
func waitListening(ctx context.Context, port int) bool {
	want := fmt.Sprintf(":%04X 00000000:0000 0A", port) // state 0A is TCP_LISTEN
	for deadline := time.Now().Add(listenWait); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		raw, err := os.ReadFile("/proc/self/net/tcp")
		if err == nil && strings.Contains(string(raw), want) {
			return true
		}
	}
	return false
}
