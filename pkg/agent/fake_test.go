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

	"zxfer/pkg/freeze"
	"zxfer/pkg/hosts"
	"zxfer/pkg/hosts/hoststest"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// host is a host in memory that records its last request.
type host struct {
	*hosts.Local
	zfs *zfsmem.Host
	do  func(context.Context) error // replaces the requested action

	mu    sync.Mutex
	asked []any // the operation and its arguments
	all   [][]any
	// plainApply applies lists of changes like every host. Run then does not record releases.
	plainApply bool
	closed     atomic.Bool

	transfer func(context.Context, hosts.Task, func(transfer.Progress)) (hosts.Result, error)
}

// newHost returns a host with datasets. do may be nil.
func newHost(do func(context.Context) error) *host {
	h := &host{zfs: zfsmem.New("vault/a", "tank/a", "tank/b", "tank/vm/x"), do: do}
	for _, name := range []string{"tank/vm@x", "tank/vm/x@x", "vault/a@w", "vault/a@x"} {
		_ = h.zfs.Snapshot(context.Background(), []string{name})
	}
	_ = h.zfs.Bookmark(context.Background(), map[string]string{"tank/vm/x#b": "tank/vm/x@x"})
	h.Local = hosts.On(h.zfs, "1.0 test", func(string) {})
	h.zfs.Around = func(ctx context.Context, op string, names []string, do func() error) error {
		return h.note(ctx, do, op, names)
	}
	return h
}

// Run records the operations that the in-memory ZFS does not record.
func (h *host) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, h.Local, r, hoststest.With(hosts.OpCapture, h.Capture), hoststest.With(hosts.OpMeasure, h.Measure),
		hoststest.With(hosts.OpSnapshotFrozen, h.SnapshotFrozen), hoststest.With(hosts.OpRelease, h.release),
		hoststest.With(hosts.OpApply, h.apply), hoststest.With(hosts.OpOffer, h.Offer), hoststest.Watched(hosts.OpTransfer, h.Transfer))
}

func (h *host) Capture(ctx context.Context, brief bool) (string, error) {
	return "-- a --\n", h.note(ctx, func() error { return nil }, hosts.OpCapture.Name(), brief)
}

func (h *host) Measure(ctx context.Context, req probe.Request) (probe.Ceiling, error) {
	return probe.Ceiling{ID: req.ID, Title: "measured there", BytesPerSecond: 7}, h.note(ctx, func() error { return nil }, hosts.OpMeasure.Name(), req)
}

// SnapshotFrozen starts no watchdog.
func (h *host) SnapshotFrozen(ctx context.Context, q freeze.Request) (freeze.Result, error) {
	return freeze.Result{Outcomes: make([]freeze.Outcome, len(q.Applications))}, h.note(ctx, func() error { return nil }, hosts.OpSnapshotFrozen.Name(), q)
}

// transferringHost returns a host whose transfers the test carries out.
func transferringHost(transfer func(context.Context, hosts.Task, func(transfer.Progress)) (hosts.Result, error)) *host {
	h := newHost(nil)
	h.transfer = transfer
	return h
}

func (h *host) note(ctx context.Context, do func() error, asked ...any) error {
	h.mu.Lock()
	h.asked, h.all = asked, append(h.all, asked)
	h.mu.Unlock()
	if h.do != nil {
		return h.do(ctx)
	}
	return do()
}

func (h *host) Close() error { h.closed.Store(true); return h.Local.Close() }

func (h *host) release(ctx context.Context, q hosts.Tagged) (none hosts.None, err error) {
	return none, h.note(ctx, func() error { return h.Local.Release(ctx, q.Tag, q.Snapshots) }, hosts.OpRelease.Name(), q.Snapshots, q.Tag)
}

// apply runs each change as a request of its own, so that Run records it, unless plainApply is set.
func (h *host) apply(ctx context.Context, l hosts.ChangeList) (found zfs.Listing, err error) {
	if h.plainApply {
		return hosts.Call(ctx, h.Local, hosts.OpApply, l)
	}
	for i, c := range l.Changes {
		if err := h.Run(ctx, c.Op.Request(c.Args, nil)); err != nil {
			return found, &hosts.StoppedError{Done: i, Err: err}
		}
	}
	if l.List != nil {
		return h.Local.List(ctx, *l.List)
	}
	return found, nil
}

func (h *host) Offer(ctx context.Context, o tcp.Offer) (tcp.Ticket, error) {
	return ticketFor(o), h.note(ctx, func() error { return nil }, hosts.OpOffer.Name(), o)
}

func ticketFor(o tcp.Offer) tcp.Ticket {
	return tcp.Ticket{Mode: o.Mode, Address: net.JoinHostPort(o.Address, "7777"), Session: strings.Repeat("5e", 16), Secret: bytes.Repeat([]byte{0, 255}, 16),
		Streams: o.Streams, Deadline: o.Deadline}
}

func (h *host) Transfer(ctx context.Context, t hosts.Task, progress func(transfer.Progress)) (res hosts.Result, err error) {
	err = h.note(ctx, func() error {
		if h.transfer != nil {
			res, err = h.transfer(ctx, t, progress)
		}
		return err
	}, hosts.OpTransfer.Name(), t)
	return res, err
}

// line is a Transport in memory. cut makes it half-open: written data is lost, and no data arrives.
// slow delays incoming data by one second per KiB, slowOut outgoing data by one second per 4 KiB.
type line struct {
	io.Reader
	io.Writer
	cut     atomic.Bool
	slow    atomic.Bool
	slowOut atomic.Bool
	read    atomic.Int64 // bytes of incoming data
	mute    chan struct{}
	closing func() error
}

func (l *line) Read(b []byte) (int, error) {
	if l.slow.Load() {
		select {
		case <-time.After(time.Second):
		case <-l.mute:
		}
	}
	n, err := l.Reader.Read(b[:min(len(b), 1<<10)]) // always short, because slow may be set during a Read
	if l.cut.Load() {
		<-l.mute
		return 0, io.ErrClosedPipe
	}
	l.read.Add(int64(n))
	return n, err
}

func (l *line) Write(b []byte) (n int, err error) {
	if l.cut.Load() {
		<-l.mute
		return 0, io.ErrClosedPipe
	}
	if !l.slowOut.Load() {
		return l.Writer.Write(b)
	}
	for n = 0; n < len(b) && err == nil; {
		select {
		case <-time.After(time.Second):
		case <-l.mute:
			return n, io.ErrClosedPipe
		}
		var k int
		k, err = l.Writer.Write(b[n:min(len(b), n+4<<10)])
		n += k
	}
	return n, err
}

func (l *line) Close() error { return l.closing() }

// rig is an agent and its client in memory.
type rig struct {
	*Remote
	server *Server
	host   *host
	line   *line
	logs   chan string
	served chan error // result of Serve
}

// inBubble runs a test on fake time. It fails if goroutines remain.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// start returns a rig and closes it after the test.
func start(t *testing.T, s *host) *rig {
	t.Helper()
	g := &rig{host: s, server: &Server{Host: s, Version: "1.0 test"}, logs: make(chan string, 1000), served: make(chan error, 1)}
	requestsR, requestsW := io.Pipe()
	answersR, answersW := io.Pipe()
	ended := make(chan struct{})
	g.line = &line{Reader: answersR, Writer: requestsW, mute: make(chan struct{})}
	g.line.closing = sync.OnceValue(func() error {
		close(g.line.mute)
		if !g.line.cut.Load() {
			_ = requestsW.Close()
			<-ended
			_ = answersR.Close()
		}
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
			_, _ = requestsW.Close(), answersR.Close()
		}
		<-ended
		require.True(t, s.closed.Load(), "the agent closes its host")
	})
	return g
}
