package agent

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/device"
	"zxfer/pkg/probe"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/wire"
	"zxfer/pkg/zfs"
)

// fakeSite answers with what a test says, and remembers what it was asked.
type fakeSite struct {
	mu     sync.Mutex
	asked  []any // the operation's name, then its arguments
	err    error
	do     func(context.Context) error // in place of err
	odd    bool                        // answers something else than was asked
	closed atomic.Bool

	transfer func(context.Context, site.Task, func(transfer.Progress)) (site.Result, error)
}

func (f *fakeSite) note(ctx context.Context, args ...any) error {
	f.mu.Lock()
	f.asked = args
	f.mu.Unlock()
	if f.do != nil {
		return f.do(ctx)
	}
	return f.err
}

// about is the name that an answer is about.
func (f *fakeSite) about(asked ...string) string {
	if f.odd {
		return "tank/elsewhere@x"
	}
	return append(asked, "")[0]
}

func (f *fakeSite) Name() string       { return "fake" }
func (f *fakeSite) RTT() time.Duration { return 0 }
func (f *fakeSite) Close() error       { f.closed.Store(true); return nil }

func (f *fakeSite) Facts(ctx context.Context) (site.Facts, error) {
	return site.Facts{Hostname: "beta", CPUs: 3, Root: true}, f.note(ctx, "facts")
}

func (f *fakeSite) HostFacts(ctx context.Context) (site.Facts, error) {
	return site.Facts{Hostname: "gamma"}, f.note(ctx, "host-facts")
}

func (f *fakeSite) InspectDevice(ctx context.Context, path string) (device.Facts, error) {
	return device.Facts{Path: path, Real: path, Kind: device.KindDisk, Size: 1 << 40, Inode: 1<<64 - 1}, f.note(ctx, "inspect-device", path)
}

func (f *fakeSite) DeviceState(ctx context.Context, t device.Task) (device.State, error) {
	return device.State{Stored: 7, Unusable: "why"}, f.note(ctx, "device-state", t)
}

func (f *fakeSite) DigestDevice(ctx context.Context, q device.DigestQuery, _ func(transfer.Progress)) (device.Digest, error) {
	return device.Digest{Parts: [][]byte{{1}}, PartBytes: 1 << 20, Result: device.Result{Device: device.Account{
		Size: q.Device.Size, Block: 1 << 20, SourceDigest: strings.Repeat("ab", 32)}}}, f.note(ctx, "digest-device", q)
}

func (f *fakeSite) List(ctx context.Context, q site.ListQuery) (zfs.Listing, error) {
	return zfs.Listing{Root: q.Dataset, Datasets: []*zfs.Dataset{{Name: f.about(q.Dataset), Type: zfs.Volume, GUID: 1<<64 - 1}}}, f.note(ctx, "list", q)
}

func (f *fakeSite) DatasetOf(ctx context.Context, path string) (string, error) {
	return f.about("tank/a"), f.note(ctx, "dataset-of", path)
}

func (f *fakeSite) Properties(ctx context.Context, names, properties []string) (map[string]map[string]zfs.Property, error) {
	return map[string]map[string]zfs.Property{f.about(names...): {"used": {Value: "1", Source: "-"}}}, f.note(ctx, "properties", names, properties)
}

func (f *fakeSite) Estimate(ctx context.Context, s []zfs.SendSpec) ([]uint64, error) {
	if f.odd {
		return nil, f.note(ctx, "estimate", s)
	}
	return []uint64{1<<64 - 1}, f.note(ctx, "estimate", s)
}

func (f *fakeSite) Snapshot(ctx context.Context, s []string) error { return f.note(ctx, "snapshot", s) }

func (f *fakeSite) Hold(ctx context.Context, tag string, s []string) error {
	return f.note(ctx, "hold", tag, s)
}

func (f *fakeSite) Release(ctx context.Context, tag string, s []string) error {
	return f.note(ctx, "release", tag, s)
}

func (f *fakeSite) Holds(ctx context.Context, s []string) (map[string][]string, error) {
	return map[string][]string{f.about(s...): {"t"}}, f.note(ctx, "holds", s)
}

func (f *fakeSite) Bookmark(ctx context.Context, b map[string]string) error {
	return f.note(ctx, "bookmark", b)
}

func (f *fakeSite) Destroy(ctx context.Context, v []string) error { return f.note(ctx, "destroy", v) }

func (f *fakeSite) CreateParents(ctx context.Context, d string) error {
	return f.note(ctx, "create-parents", d)
}

func (f *fakeSite) DiscardPartial(ctx context.Context, d string) error {
	return f.note(ctx, "discard-partial", d)
}

func (f *fakeSite) Digest(ctx context.Context, s site.ContentQuery) (site.Digest, error) {
	return site.Digest{Sum: strings.Repeat("ab", 16), Bytes: 7, Shift: 1, Parts: []zfs.Part{{At: 1 << 62, Sum: strings.Repeat("cd", 16)}}}, f.note(ctx, "digest", s)
}

func (f *fakeSite) Offer(ctx context.Context, o wire.Offer) (wire.Ticket, error) {
	return ticketFor(o), f.note(ctx, "offer", o)
}

func ticketFor(o wire.Offer) wire.Ticket {
	return wire.Ticket{Mode: o.Mode, Address: net.JoinHostPort(o.Address, "7777"), Session: strings.Repeat("5e", 16), Secret: bytes.Repeat([]byte{0, 255}, 16),
		Streams: o.Streams, Deadline: o.Deadline, ServerPin: bytes.Repeat([]byte{7}, 32)}
}

func (f *fakeSite) Transfer(ctx context.Context, t site.Task, progress func(transfer.Progress)) (site.Result, error) {
	if f.transfer != nil {
		return f.transfer(ctx, t, progress)
	}
	return site.Result{Result: transfer.Result{Frames: 9}}, f.note(ctx, "transfer", t)
}

func (f *fakeSite) Capture(ctx context.Context, brief bool) ([]byte, error) {
	return []byte("-- a --\n"), f.note(ctx, "capture", brief)
}

func (f *fakeSite) Measure(ctx context.Context, r probe.Request) (probe.Ceiling, error) {
	return probe.Ceiling{ID: r.ID, BytesPerSecond: 7}, f.note(ctx, "measure", r)
}

var _ site.Site = (*fakeSite)(nil)

// line is a Transport in memory. Cut makes it half-open: what is written
// vanishes, and nothing comes any more. Slow makes what comes take a second for
// each KiB.
type line struct {
	io.Reader
	io.Writer
	cut     atomic.Bool
	slow    atomic.Bool
	mute    chan struct{}
	closing func() error
}

func (l *line) Read(b []byte) (int, error) {
	if l.slow.Load() {
		select {
		case <-time.After(time.Second):
		case <-l.mute:
		}
		b = b[:min(len(b), 1<<10)]
	}
	n, err := l.Reader.Read(b)
	if l.cut.Load() {
		<-l.mute
		return 0, io.ErrClosedPipe
	}
	return n, err
}

func (l *line) Write(b []byte) (int, error) {
	if l.cut.Load() {
		<-l.mute
		return 0, io.ErrClosedPipe
	}
	return l.Writer.Write(b)
}

func (l *line) Close() error { return l.closing() }

// rig is an agent and its client, in memory.
type rig struct {
	*Remote
	server *Server
	site   *fakeSite
	line   *line
	logs   chan string
	served chan error // of Serve
}

// inBubble runs a test on fake time; goroutines that stay behind fail it.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// start makes a rig and takes it down after the test.
func start(t *testing.T, s *fakeSite) *rig {
	t.Helper()
	g := &rig{site: s, server: &Server{Site: s, Version: "1.0 test"}, logs: make(chan string, 1000), served: make(chan error, 1)}
	requestsR, requestsW := io.Pipe()
	answersR, answersW := io.Pipe()
	ended := make(chan struct{})
	g.line = &line{Reader: answersR, Writer: requestsW, mute: make(chan struct{})}
	g.line.closing = sync.OnceValue(func() error {
		close(g.line.mute)
		if !g.line.cut.Load() {
			_ = requestsW.Close()
			<-ended
		}
		_ = answersR.Close()
		return nil
	})
	go func() {
		g.served <- g.server.Serve(context.Background(), requestsR, answersW)
		_ = answersW.Close()
		_ = requestsR.Close()
		close(ended)
	}()
	var err error
	g.Remote, err = NewRemote(t.Context(), "beta", g.line, func(text string) { g.logs <- text })
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = g.Close()
		if g.line.cut.Load() {
			_ = requestsW.Close()
		}
		<-ended
		require.True(t, s.closed.Load(), "the agent closes its Site")
	})
	return g
}
