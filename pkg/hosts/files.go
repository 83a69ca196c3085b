package hosts

import (
	"context"
	"errors"
	"os"
	"strings"

	"zxfer/pkg/files"
	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
)

func (l *Local) ReadFiles(ctx context.Context, q files.Query, progress func(transfer.Progress)) (d files.Digest, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	if err := q.Check(); err != nil {
		return d, err
	}
	root, closeFiles, err := l.openFiles(ctx, q.Snapshot, q.KeyFile, q.Replica)
	if err != nil {
		return d, err
	}
	d, err = files.Read(ctx, root, q, progress)
	return d, errors.Join(err, closeFiles())
}

func (l *Local) ReadBlockSizes(ctx context.Context, q files.BlockQuery, progress func(transfer.Progress)) (s files.BlockSizes, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	if err := q.Check(); err != nil {
		return s, err
	}
	root, closeFiles, err := l.openFiles(ctx, q.Snapshot, "", false)
	if err != nil {
		return s, err
	}
	s, err = files.ReadBlockSizes(ctx, root, q, progress)
	return s, errors.Join(err, closeFiles())
}

// packFiles returns files of a snapshot as a stream.
func (l *Local) packFiles(ctx context.Context, a files.Archive) (transfer.Source, error) {
	if err := a.Check(); err != nil {
		return nil, err
	}
	hidden := ""
	root, closeFiles, err := l.openFiles(ctx, a.Snapshot, a.KeyFile, !a.NamesOnly)
	if errors.Is(err, &zfs.Error{Kind: zfs.NotSupported}) { // such as a pool that was imported read-only
		hidden = err.Error()
		root, closeFiles, err = l.openFiles(ctx, a.Snapshot, a.KeyFile, false)
	}
	if err != nil {
		return nil, err
	}
	return files.Pack(ctx, root, closeFiles, a, hidden)
}

// openFiles mounts a snapshot, or a filesystem in its current state, for this process alone. It
// loads the key from keyFile if needed. closeFiles unmounts, and unloads a key that openFiles loaded.
// Tools.MountFiles explains acls.
func (l *Local) openFiles(ctx context.Context, source, keyFile string, acls bool) (root *os.File, closeFiles func() error, err error) {
	dataset, _, _ := strings.Cut(source, "@")
	if source == dataset {
		_, err = zfs.ParseDataset(source)
	} else {
		_, _, err = zfs.ParseSnapshot(source)
	}
	if err != nil {
		return nil, nil, err
	}
	unload, err := l.useKey(ctx, dataset, keyFile)
	if err != nil {
		return nil, nil, err
	}
	root, unmount, err := l.tools.MountFiles(ctx, source, acls)
	if err != nil {
		return nil, nil, errors.Join(err, unload())
	}
	return root, func() error { return errors.Join(unmount(), unload()) }, nil
}
