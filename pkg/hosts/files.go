package hosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"zxfer/pkg/files"
	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
)

// ReadFiles reads the files of a snapshot.
func (l *Local) ReadFiles(ctx context.Context, q files.Query, progress func(transfer.Progress)) (d files.Digest, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	if err := q.Check(); err != nil {
		return d, err
	}
	root, closes, err := l.openFiles(ctx, q.Snapshot, q.KeyFile)
	if err != nil {
		return d, err
	}
	d, err = files.Read(ctx, root, q, progress)
	return d, errors.Join(err, closes())
}

// packFiles opens files of a snapshot as a stream.
func (l *Local) packFiles(ctx context.Context, a files.Archive) (transfer.Source, error) {
	if err := a.Check(); err != nil {
		return nil, err
	}
	root, closes, err := l.openFiles(ctx, a.Snapshot, a.KeyFile)
	if err != nil {
		return nil, err
	}
	return files.Pack(ctx, root, closes, a)
}

// accounted adds what the ends of this process tell of files.
func (r *Result) accounted(src transfer.Source, sink transfer.Sink) {
	from, sends := src.(*files.Packer)
	to, receives := sink.(*files.Unpacker)
	var a files.Account
	if receives {
		a = to.Account()
	}
	if sends {
		a = a.With(from.Account())
	}
	if sends || receives {
		r.Files = &a
	}
}

// openFiles mounts a snapshot, or a filesystem as it is, for this process alone,
// with the key of a file where it needs one and one is named. closes unmounts it and
// unloads the key, if it was not loaded before.
func (l *Local) openFiles(ctx context.Context, source, keyFile string) (root *os.File, closes func() error, err error) {
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
	root, err = l.tools.MountFiles(source)
	if err != nil {
		return nil, nil, errors.Join(err, unload())
	}
	return root, func() error { return errors.Join(root.Close(), unload()) }, nil
}

// CheckFiles refuses what is no digest of the files that were asked for.
func CheckFiles(q files.Query, d *files.Digest) error {
	if len(d.Parts) != files.Parts {
		return fmt.Errorf("a digest of %d parts, and %d were asked for", len(d.Parts), files.Parts)
	}
	for _, p := range d.Parts {
		if !isHex(p, 16) {
			return fmt.Errorf("%q is no digest", cut(p))
		}
	}
	if len(d.Listed) > files.MaxListed || len(d.Listed) > 0 && q.Within == 0 {
		return fmt.Errorf("%d files were listed", len(d.Listed))
	}
	if len(d.Problems) > files.MaxProblems || d.Failed < uint64(len(d.Problems)) {
		return fmt.Errorf("%d problems were told", len(d.Problems))
	}
	return plausible(d, shown)
}
