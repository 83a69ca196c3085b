package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/zfs"
)

// scratchPrefix begins the names of scratch datasets, so that one which a
// crash left behind is known for what it is.
const scratchPrefix = "zxfer-doctor-"

// destroyWithin bounds the removal of a scratch dataset, which goes on after
// its context has ended.
const destroyWithin = 30 * time.Second

// Scratch is a filesystem to measure with.
type Scratch struct {
	Dir string // where it is mounted
	cli *CLI
	// name is the dataset's.
	name    string
	settled int // times
}

// Settle waits until what was written is on the pool's disks, as a receive
// does at its end. Setting a property is a sync task, for which a pool writes
// out as fast as it does when a receive outruns it, unlike for zpool sync.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.0/module/zfs/vdev_queue.c (vdev_queue_max_async_writes)
func (s *Scratch) Settle(ctx context.Context) error {
	s.settled++
	_, err := s.cli.zfsOutput(ctx, zfs.Failure{Op: zfs.OpCreate, Subject: s.name}, []string{"set", "zxfer:settled=" + strconv.Itoa(s.settled), s.name})
	return err
}

// Remove destroys the filesystem and what it was mounted at.
func (s *Scratch) Remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyWithin)
	defer cancel()
	_, err := s.cli.zfsOutput(ctx, zfs.Failure{Op: zfs.OpDestroy, Subject: s.name}, []string{"destroy", "-f", s.name})
	var e *zfs.Error
	if errors.As(err, &e) && (e.Kind == zfs.NotFound || strings.Contains(e.Detail, "does not exist")) {
		err = nil
	}
	return errors.Join(err, os.Remove(s.Dir))
}

// Scratch makes a filesystem of a random name below parent and mounts it at a
// new directory. Nothing that is written there is compressed, so that what is
// measured is the disks.
func (c *CLI) Scratch(ctx context.Context, parent string) (*Scratch, error) {
	if _, err := zfs.ParseDataset(parent); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", scratchPrefix)
	if err != nil {
		return nil, err
	}
	s := &Scratch{Dir: dir, cli: c, name: parent + "/" + scratchPrefix + strings.ToLower(rand.Text()[:10])}
	args := []string{"create", "-o", "mountpoint=" + dir, "-o", "compression=off", "-o", "dedup=off", "-o", "sync=disabled", "-o", "canmount=on", "-o", "atime=off", s.name}
	if _, err = c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpCreate, Subject: s.name}, args); err != nil {
		_ = s.Remove(ctx) // it may be half made; the error of create counts
		return nil, err
	}
	return s, nil
}
