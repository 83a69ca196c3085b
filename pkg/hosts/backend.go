package hosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
	"zxfer/pkg/zfs/lzc"
)

// direct has the operations that Local forwards to its tools unchanged.
type direct interface {
	Datasets
	Copies
	Mount(ctx context.Context, m zfs.MountRequest) (loose string, err error)
	Mountpoints(ctx context.Context) ([]zfs.Mountpoint, error)
	InUse(ctx context.Context, paths []string) (map[string]string, error)
	Mark(ctx context.Context, property, value string, snapshots []string) error
	DestroyOrphans(ctx context.Context, all []zfs.Orphan) error
	RenameCopies(ctx context.Context, all []zfs.RenamedCopy) error
	cli.Pools // Local adds Damage, Scrub and Sync by dataset
}

// Tools is the ZFS implementation that a Local uses.
type Tools interface {
	direct
	OpenSend(ctx context.Context, s zfs.SendSpec) (cli.Stream, error)
	OpenReceive(ctx context.Context, r zfs.ReceiveSpec) (transfer.Sink, error)
	// MountFiles mounts a snapshot, or a filesystem in its current state, for the holder of the
	// returned root directory, until unmount. If acls is true, it fails unless the files show their
	// access control lists.
	MountFiles(ctx context.Context, source string, acls bool) (root *os.File, unmount func() error, err error)
	// LoadKey loads the key of an encryption root from a file. UnloadKey unloads it.
	LoadKey(ctx context.Context, root, file string) error
	UnloadKey(ctx context.Context, root string) error
	// RunDirectory is a directory that processes of this host share until it reboots.
	RunDirectory() string

	Permitted(ctx context.Context, dataset, user string, groups []string) (zfs.Permitted, error)
	InheritKey(ctx context.Context, dataset string) error
	MakeEncryptionRoot(ctx context.Context, dataset string) error
	RunInDrillClone(ctx context.Context, a zfs.DrillCommand) (zfs.DrillResult, error)
}

// On returns the Host of this computer with the given tools, which are also its back end.
func On(tools Tools, version string, log func(string)) *Local {
	l := &Local{direct: tools, tools: tools, module: "2.3.9-1", version: version, log: log, stack: tcp.Kernel{}, offers: map[string]*tcp.Listener{}, accepting: map[string]*tcp.Listener{}}
	l.life, l.cancel = context.WithCancel(context.Background())
	l.backend = func() (cli.Backend, string) { return tools, l.module }
	l.started.Store(true)
	l.scratch = func(context.Context, string) (*cli.Scratch, error) { return nil, errors.ErrUnsupported }
	return l
}

// NewLocal returns the Host of this computer. version is zxfer's version. log receives problems
// that do not fail an operation, such as unauthenticated clients at a listener.
func NewLocal(version string, log func(string)) *Local {
	commandLine := cli.New(log)
	l := On(commandLine, version, log)
	l.direct, l.scratch, l.module = commandLine.WithContext(l.life), commandLine.Scratch, sysinfo.ZFSVersion(os.DirFS("/"))
	// The helper starts slower than a small job runs, so it starts on first use.
	l.started.Store(false)
	l.backend = sync.OnceValues(func() (cli.Backend, string) { return l.startBackend(commandLine) })
	return l
}

// Backend returns the name of the back end for people. It starts the back end.
func (l *Local) Backend() string {
	_, name := l.backend()
	return name
}

// likelyBackend returns the name of the back end without starting it. It depends on the installed
// packages.
func (l *Local) likelyBackend() string {
	switch {
	case l.started.Load():
		return l.Backend()
	case sysinfo.FindPyZFS(os.DirFS("/")) == sysinfo.Missing:
		return "zfs command line (pyzfs is not installed)"
	}
	return "libzfs_core (pyzfs)"
}

// startBackend prefers libzfs_core. It changes many names in one transaction, the command line one
// at a time.
func (l *Local) startBackend(commandLine *cli.CLI) (cli.Backend, string) {
	l.started.Store(true)
	c, err := lzc.Start(l.life)
	if err != nil {
		if sysinfo.FindPyZFS(os.DirFS("/")) != sysinfo.Missing {
			l.log(fmt.Sprintf("libzfs_core is unavailable, zxfer uses the zfs command line: %v", err))
		}
		return commandLine, fmt.Sprintf("zfs command line (%v)", err)
	}
	return c, c.Name()
}

// with calls f with the back end. If Python hangs, the start takes half a minute; the end of ctx
// stops the wait.
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
