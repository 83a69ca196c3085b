package hosts

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"zxfer/pkg/device"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

var (
	_ Host  = (*Local)(nil)
	_ Plain = (*Local)(nil)
)

// Local is the Host of this computer.
type Local struct {
	direct  // runs under life
	tools   Tools
	scratch func(ctx context.Context, parent string) (*cli.Scratch, error)
	module  string // version of the ZFS kernel module, "" if it is not loaded
	version string
	log     func(string)

	// life ends when Close is called. Every operation runs under it.
	life   context.Context
	cancel context.CancelFunc

	backend func() (cli.Backend, string)
	started atomic.Bool // backend was called

	std   device.Streams // not set if the process speaks a protocol on them
	stack tcp.Stack

	grants []string // of a restricted agent

	limits transfer.Limits  // of the streams that this process sends
	memory *transfer.Memory // of all streams; nil = no limit

	mu        sync.Mutex
	offers    map[string]*tcp.Listener // unused ones, by session id
	accepting map[string]*tcp.Listener // that a Transfer waits for, by session id

	attached attachments
	places   transfer.Places
}

// SetStandard sets the standard input and output of the process, which device copies may use.
func (l *Local) SetStandard(std device.Streams) { l.std = std }

// Restrict makes this the host of a restricted agent with these flags: Facts has them, and the memory
// of all streams is limited.
func (l *Local) Restrict(flags []string) {
	l.grants, l.memory = flags, &transfer.Memory{Limit: maxStreamMemory}
}

// maxStreamMemory limits the memory of the streams of a restricted agent, beyond the floor of each, in bytes.
const maxStreamMemory = 1 << 30

// SetStack replaces the TCP stack of the kernel.
func (l *Local) SetStack(s tcp.Stack) { l.stack = s }

// LocalName is the name of the local host in messages.
const LocalName = "local"

// Name returns LocalName.
func (l *Local) Name() string { return LocalName }

// Supports returns true.
func (l *Local) Supports(Operation) bool { return true }

// Run runs a request in this process.
func (l *Local) Run(ctx context.Context, r *Request) error { return r.On(ctx, l) }

// RTT returns 0.
func (l *Local) RTT() time.Duration { return 0 }

// Close ends all operations and closes all listeners.
func (l *Local) Close() error {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for id, o := range l.offers {
		errs = append(errs, o.Close())
		delete(l.offers, id)
	}
	return errors.Join(errs...)
}

// bound returns a context that also ends when the Host is closed.
func (l *Local) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.life, cancel)
	return ctx, func() { stop(); cancel() }
}

func (l *Local) Facts(ctx context.Context) (Facts, error) {
	f, err := l.HostFacts(ctx)
	if err != nil {
		return f, err
	}
	if f.ZFS == "" {
		return f, &zfs.Error{Kind: zfs.NoZFS, Op: "version", Detail: "the ZFS kernel module is not loaded",
			Hint: "modprobe zfs (on Debian, first: apt install zfsutils-linux zfs-dkms)"}
	}
	f.Backend = l.likelyBackend()
	return f, nil
}

// HostFacts returns the facts of the host without the ZFS back end.
func (l *Local) HostFacts(context.Context) (Facts, error) {
	root := os.DirFS("/")
	f := Facts{
		Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Version: l.version, User: cli.UserName(), Root: os.Geteuid() == 0,
		ZFS: l.module, Kernel: sysinfo.Kernel(root), Boot: sysinfo.BootID(root),
		TCP: tcp.ReadTCP(root), Grants: l.grants,
	}
	f.Hostname, _ = os.Hostname() // unknown stays ""
	if c := strings.Fields(os.Getenv("SSH_CONNECTION")); len(c) == 4 {
		f.SSHPeer, f.SSHLocal = c[0], c[2]
	}
	return f, nil
}

// Permitted returns what zfs allow permits to this process on a dataset.
func (l *Local) Permitted(ctx context.Context, dataset string) (zfs.Permitted, error) {
	return l.tools.Permitted(ctx, dataset, cli.UserName(), cli.GroupNames())
}

func (l *Local) Snapshot(ctx context.Context, snapshots []string) error {
	return l.with(ctx, func(ctx context.Context, b cli.Backend) error { return b.Snapshot(ctx, snapshots) })
}

func (l *Local) Hold(ctx context.Context, tag string, snapshots []string) error {
	return l.with(ctx, func(ctx context.Context, b cli.Backend) error { return b.Hold(ctx, tag, snapshots) })
}

func (l *Local) Release(ctx context.Context, tag string, snapshots []string) error {
	return l.with(ctx, func(ctx context.Context, b cli.Backend) error { return b.Release(ctx, tag, snapshots) })
}

func (l *Local) Bookmark(ctx context.Context, bookmarks map[string]string) error {
	return l.with(ctx, func(ctx context.Context, b cli.Backend) error { return b.Bookmark(ctx, bookmarks) })
}

func (l *Local) Destroy(ctx context.Context, versions []string) error {
	return l.with(ctx, func(ctx context.Context, b cli.Backend) error { return b.Destroy(ctx, versions) })
}

func (l *Local) Damage(ctx context.Context, dataset string) (zfs.Damage, error) {
	d, err := l.direct.Damage(ctx, zfs.PoolOf(dataset))
	return d.Within(dataset), err
}

func (l *Local) Scrub(ctx context.Context, dataset string) error {
	return l.direct.Scrub(ctx, zfs.PoolOf(dataset))
}

func (l *Local) Sync(ctx context.Context, dataset string) error {
	return l.direct.Sync(ctx, zfs.PoolOf(dataset))
}

func (l *Local) CreateDrillClone(ctx context.Context, a zfs.DrillClone) (string, error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	return l.tools.CreateDrillClone(ctx, a)
}

func (l *Local) RunInDrillClone(ctx context.Context, a zfs.DrillCommand) (r zfs.DrillResult, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	unload, err := l.useKey(ctx, a.Clone, a.KeyFile)
	if err != nil {
		return r, err
	}
	r, err = l.tools.RunInDrillClone(ctx, a)
	return r, errors.Join(err, unload())
}

// InspectDevice returns the facts of a device or image file. If only its directory exists, the kind
// is missing.
func (l *Local) InspectDevice(ctx context.Context, path string) (device.Facts, error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	return device.Inspect(ctx, path)
}

// DeviceState looks for the journal of an earlier copy, and checks that the target still holds the
// blocks recorded in it.
func (l *Local) DeviceState(_ context.Context, t device.Task) (device.State, error) {
	return device.StateOf(t)
}

func (l *Local) DigestDevice(ctx context.Context, q device.DigestQuery, progress func(transfer.Progress)) (device.Digest, error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	return device.DigestOf(ctx, q, progress)
}
