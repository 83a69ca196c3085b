package hosts

import (
	"context"
	"errors"
	"os"

	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

// direct is what a Local does just as its tools do it.
type direct interface {
	Datasets
	SetProperties(ctx context.Context, a zfs.PropertyChange) error
	Mount(ctx context.Context, dataset string) error
	Unmount(ctx context.Context, dataset string) error
	Rollback(ctx context.Context, r zfs.Rollback) error
	InUse(ctx context.Context, paths []string) (map[string]string, error)
	DestroyDrillClones(ctx context.Context, a zfs.DrillClones) error
	Mark(ctx context.Context, property, value string, snapshots []string) error
	Retention
	cli.Pools // but for what a dataset has of its pool
}

// Tools are the ZFS that a Local acts on.
type Tools interface {
	direct
	OpenSend(ctx context.Context, s zfs.SendSpec) (cli.Stream, error)
	OpenReceive(ctx context.Context, r zfs.ReceiveSpec) (transfer.Sink, error)
	// MountFiles mounts a snapshot, or a filesystem as it is, for whoever has
	// what is returned, its root.
	MountFiles(source string) (*os.File, error)
	// LoadKey loads the key of an encryption root from a file, UnloadKey unloads it.
	LoadKey(ctx context.Context, root, file string) error
	UnloadKey(ctx context.Context, root string) error
	// RunDirectory is where the processes of this host find each other, until it
	// starts anew.
	RunDirectory() string

	InheritKey(ctx context.Context, dataset string) error
	MakeEncryptionRoot(ctx context.Context, dataset string) error
	CreateDrillClone(ctx context.Context, a zfs.DrillClone) (string, error)
	RunInDrillClone(ctx context.Context, a zfs.DrillCommand) (zfs.DrillResult, error)
}

// On returns a Site of this host that acts on other tools than its own.
func On(tools Tools, version string, log func(string)) *Local {
	l := newLocal(version, log)
	l.direct, l.tools, l.module = tools, tools, "2.3.9-1"
	l.backend = func() (cli.Backend, string) { return tools, l.module }
	l.started.Store(true)
	l.scratch = func(context.Context, string) (*cli.Scratch, error) { return nil, errors.ErrUnsupported }
	return l
}
