package site

import (
	"context"
	"errors"
	"os"

	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsexec"
)

// Tools are the ZFS that a Local acts on.
type Tools interface {
	Datasets
	OpenSend(ctx context.Context, s zfs.SendSpec) (zfsexec.Stream, error)
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

	Adjust(ctx context.Context, a zfs.Adjustment) error
	Mount(ctx context.Context, dataset string) error
	Unmount(ctx context.Context, dataset string) error
	InheritKey(ctx context.Context, dataset string) error
	Occupied(ctx context.Context, paths []string) (map[string]string, error)
	Rehearser
	zfsexec.Pools
}

// On returns a Site of this host that acts on other tools than its own.
func On(tools Tools, version string, log func(string)) *Local {
	l := newLocal(version, log)
	l.Datasets, l.tools, l.module = tools, tools, "2.3.9-1"
	l.backend = func() (zfsexec.Backend, string) { return tools, l.module }
	l.started.Store(true)
	l.scratch = func(context.Context, string) (*zfsexec.Scratch, error) { return nil, errors.ErrUnsupported }
	return l
}
