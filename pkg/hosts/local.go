package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"zxfer/pkg/device"
	"zxfer/pkg/probe"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
	"zxfer/pkg/zfs/lzc"
)

// Local is the Site of this host.
type Local struct {
	direct  // under life
	tools   Tools
	scratch func(ctx context.Context, parent string) (*cli.Scratch, error)
	module  string // version of ZFS, "" where it is not loaded
	version string
	log     func(string)

	// life ends when Close is called; every operation runs under it.
	life context.Context
	end  context.CancelFunc

	backend func() (cli.Backend, string)
	started atomic.Bool // backend was asked for

	std device.Streams // none where the process speaks a protocol on them

	mu     sync.Mutex
	offers map[string]*tcp.Listener // by session id
}

// NewLocal returns the Site of this host. version is zxfer's own; log is told
// what an operation notices but does not fail for, such as strangers at a
// listener.
func NewLocal(version string, log func(string)) *Local {
	l := newLocal(version, log)
	commandLine := cli.New(log)
	l.direct, l.tools, l.scratch, l.module = commandLine.Under(l.life), commandLine, commandLine.Scratch, sysinfo.ZFSVersion(os.DirFS("/"))
	// The helper takes longer to start than a small job has work for it: only
	// who needs it waits, once.
	l.backend = sync.OnceValues(func() (cli.Backend, string) { return l.startBackend(commandLine) })
	return l
}

func newLocal(version string, log func(string)) *Local {
	l := &Local{version: version, log: log, offers: map[string]*tcp.Listener{}}
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// startBackend prefers libzfs_core, which does in bulk and in one transaction
// what the command line does name by name.
func (l *Local) startBackend(commandLine *cli.CLI) (cli.Backend, string) {
	l.started.Store(true)
	c, err := lzc.Start(l.life)
	if err != nil {
		if sysinfo.FindPyZFS(os.DirFS("/")) != sysinfo.Missing {
			l.log(fmt.Sprintf("libzfs_core cannot be used, the zfs command line does its work: %v", err))
		}
		return commandLine, fmt.Sprintf("zfs command line (%v)", err)
	}
	return c, c.Name()
}

// Backend says what makes the changes around a transfer on this host, for
// people; it starts it.
func (l *Local) Backend() string {
	_, name := l.backend()
	return name
}

// likelyBackend is Backend without starting it: what is installed decides.
func (l *Local) likelyBackend() string {
	switch {
	case l.started.Load():
		return l.Backend()
	case sysinfo.FindPyZFS(os.DirFS("/")) == sysinfo.Missing:
		return "zfs command line (pyzfs is not installed)"
	}
	return "libzfs_core (pyzfs)"
}

// Name is "local".
func (l *Local) Name() string { return "local" }

// RTT is 0.
func (l *Local) RTT() time.Duration { return 0 }

// Close ends everything the Site started.
func (l *Local) Close() error {
	l.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for id, o := range l.offers {
		errs = append(errs, o.Close())
		delete(l.offers, id)
	}
	return errors.Join(errs...)
}

// bound returns a context that ends with ctx and with the Site.
func (l *Local) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.life, cancel)
	return ctx, func() { stop(); cancel() }
}

// HostFacts reads what the host says about itself, but for ZFS's back end.
func (l *Local) HostFacts(context.Context) (Facts, error) {
	root := os.DirFS("/")
	f := Facts{
		Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Version: l.version, User: cli.UserName(), Root: os.Geteuid() == 0,
		ZFS: l.module, Kernel: sysinfo.Kernel(root), Boot: sysinfo.Boot(root),
		TCP: tcp.ReadTCP(root),
	}
	f.Hostname, _ = os.Hostname() // unknown stays ""
	if c := strings.Fields(os.Getenv("SSH_CONNECTION")); len(c) == 4 {
		f.SSHPeer, f.SSHLocal = c[0], c[2]
	}
	return f, nil
}

// Facts reads what the host says about itself.
func (l *Local) Facts(ctx context.Context) (Facts, error) {
	f, err := l.HostFacts(ctx)
	if err != nil {
		return f, err
	}
	if f.ZFS == "" {
		return f, &zfs.Error{Kind: zfs.NoZFS, Op: "version", Detail: "the ZFS kernel module is not loaded",
			Hint: "modprobe zfs; on Debian: apt install zfsutils-linux zfs-dkms"}
	}
	f.Backend = l.likelyBackend()
	return f, nil
}

// with runs one operation of the back end. Its start takes a while, and half a
// minute where Python hangs: the context ends that wait, too.
func (l *Local) with(ctx context.Context, f func(context.Context, cli.Backend) error) error {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	var b cli.Backend
	started := make(chan struct{})
	go func() {
		defer close(started)
		b, _ = l.backend()
	}()
	select {
	case <-started:
		return f(ctx, b)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Estimate returns the sizes of streams in bytes. One alone the command line
// estimates sooner than the helper has started.
func (l *Local) Estimate(ctx context.Context, streams []zfs.SendSpec) (sizes []uint64, err error) {
	if len(streams) == 1 && !l.started.Load() {
		return l.direct.Estimate(ctx, streams)
	}
	err = l.with(ctx, func(ctx context.Context, b cli.Backend) error {
		sizes, err = b.Estimate(ctx, streams)
		return err
	})
	return sizes, err
}

// Snapshot takes all snapshots or none.
func (l *Local) Snapshot(ctx context.Context, snapshots []string) error {
	return l.with(ctx, func(ctx context.Context, b cli.Backend) error { return b.Snapshot(ctx, snapshots) })
}

// Hold places holds.
func (l *Local) Hold(ctx context.Context, tag string, snapshots []string) error {
	return l.with(ctx, func(ctx context.Context, b cli.Backend) error { return b.Hold(ctx, tag, snapshots) })
}

// Release removes holds.
func (l *Local) Release(ctx context.Context, tag string, snapshots []string) error {
	return l.with(ctx, func(ctx context.Context, b cli.Backend) error { return b.Release(ctx, tag, snapshots) })
}

// Bookmark makes bookmarks.
func (l *Local) Bookmark(ctx context.Context, bookmarks map[string]string) error {
	return l.with(ctx, func(ctx context.Context, b cli.Backend) error { return b.Bookmark(ctx, bookmarks) })
}

// Destroy destroys snapshots and bookmarks.
func (l *Local) Destroy(ctx context.Context, versions []string) error {
	return l.with(ctx, func(ctx context.Context, b cli.Backend) error { return b.Destroy(ctx, versions) })
}

// maxOffers bounds the listeners that wait to be used. A job has one for each
// stream that is about to begin; who asks for all ports of the host has none.
const maxOffers = 256

// Offer opens a listener for one Transfer.
func (l *Local) Offer(ctx context.Context, o tcp.Offer) (tcp.Ticket, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.offers, func(_ string, ln *tcp.Listener) bool { return ln.Failed() })
	if len(l.offers) >= maxOffers {
		return tcp.Ticket{}, fmt.Errorf("%d listeners wait for their transfers already", len(l.offers))
	}
	ln, err := tcp.Listen(l.life, o, l.log)
	if err != nil {
		return tcp.Ticket{}, err
	}
	t := ln.Ticket()
	l.offers[t.Session] = ln
	return t, nil
}

// take hands over an offered listener; it can be used once.
func (l *Local) take(session string) (*tcp.Listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.offers[session]
	if ln == nil {
		return nil, fmt.Errorf("no listener was offered for session %q", session)
	}
	delete(l.offers, session)
	return ln, nil
}

// link opens the connections that are an end of a task, nil for none.
func (l *Local) link(ctx context.Context, end any) (*tcp.Link, error) {
	switch e := end.(type) {
	case Dial:
		return tcp.Dial(ctx, e.Ticket)
	case Accept:
		ln, err := l.take(e.Session)
		if err != nil {
			return nil, err
		}
		link, err := ln.Accept(ctx)
		if err != nil {
			_ = ln.Close() // nobody else knows of it any more
		}
		return link, err
	}
	return nil, nil
}

// Transfer does a Task. The link is made before any process is started: a peer
// that never comes costs nothing.
func (l *Local) Transfer(ctx context.Context, t Task, progress func(transfer.Progress)) (res Result, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	if err := t.check(); err != nil {
		return res, err
	}
	sends, err := l.link(ctx, t.To)
	if err != nil {
		return res, err
	}
	receives, err := l.link(ctx, t.From)
	if err != nil {
		return res, err
	}
	link := cmp.Or(sends, receives)
	if link != nil {
		defer link.Close()
	}
	d, ok := t.device()
	switch {
	case kind(t.Moves()) == nothing:
		return res, l.tried(ctx, link)
	case ok:
		d, err := device.Copy(ctx, d, link, l.std, progress)
		return Result{Result: d.Result, Device: &d.Device}, err
	case link == nil:
		return l.copyLocal(ctx, t, progress)
	case sends != nil:
		return l.send(ctx, t.From, link, progress)
	}
	return l.receive(ctx, link, t.To, progress)
}

// tried closes a link that carries nothing. The other end's proof may still be
// on its way: the link is read to its end.
func (l *Local) tried(ctx context.Context, link *tcp.Link) error {
	if link == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = link.Close() }) // which Finish does not wait for
	defer stop()
	link.Finish()
	return context.Cause(ctx)
}

func (l *Local) send(ctx context.Context, from From, link *tcp.Link, progress func(transfer.Progress)) (res Result, err error) {
	if n, ok := from.(Noise); ok {
		res.Result, err = probe.SendNoise(ctx, link, n.Time)
		return res, err
	}
	src, err := l.OpenFrom(ctx, from)
	if err != nil {
		link.Abort(err)
		return res, err
	}
	defer src.Close()
	res.Result, err = transfer.Send(ctx, src, link, OptionsOf(from), progress)
	res.accounted(src, nil)
	return res, CauseOf(src, err)
}

func (l *Local) receive(ctx context.Context, link *tcp.Link, to To, progress func(transfer.Progress)) (res Result, err error) {
	if _, ok := to.(Nowhere); ok {
		res.Result, err = probe.ReceiveNoise(ctx, link)
		return res, err
	}
	sink, err := l.OpenTo(ctx, to)
	if err != nil {
		link.Abort(err)
		return res, err
	}
	res.Result, err = transfer.Receive(ctx, link, sink, OptionsOf(to), progress)
	res.accounted(nil, sink)
	return res, err
}

func (l *Local) copyLocal(ctx context.Context, t Task, progress func(transfer.Progress)) (res Result, err error) {
	src, err := l.OpenFrom(ctx, t.From)
	if err != nil {
		return res, err
	}
	defer src.Close()
	sink, err := l.OpenTo(ctx, t.To)
	if err != nil {
		return res, err
	}
	res.Result, err = transfer.Copy(ctx, src, sink, OptionsOf(t.From), progress)
	res.accounted(src, sink)
	return res, CauseOf(src, err)
}

var _ FullHost = (*Local)(nil)
