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

// scratchPrefix starts the names of scratch datasets, so that a leftover after a crash can be
// recognized.
const scratchPrefix = "zxfer-doctor-"

// destroyTimeout limits the destruction of a scratch dataset, which continues after its context
// ended.
const destroyTimeout = 30 * time.Second

// Scratch is a temporary filesystem for measurements.
type Scratch struct {
	Dir string // mountpoint
	cli *CLI
	// dataset name
	name    string
	settles int // number of Settle calls
}

// Settle waits until written data is on the pool's disks, as a receive does at its end. It sets a
// property, which is a sync task. For that, the pool writes as fast as for a receive that outruns
// it, unlike for zpool sync.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.0/module/zfs/vdev_queue.c (vdev_queue_max_async_writes)
func (s *Scratch) Settle(ctx context.Context) error {
	s.settles++
	_, err := s.cli.zfsOutput(ctx, zfs.Failure{Op: zfs.OpCreate, Subject: s.name}, []string{"set", "zxfer:settled=" + strconv.Itoa(s.settles), s.name})
	return err
}

// Remove destroys the filesystem and deletes its mountpoint.
func (s *Scratch) Remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyTimeout)
	defer cancel()
	_, err := s.cli.zfsOutput(ctx, zfs.Failure{Op: zfs.OpDestroy, Subject: s.name}, []string{"destroy", "-f", s.name})
	var e *zfs.Error
	if errors.As(err, &e) && (e.Kind == zfs.NotFound || strings.Contains(e.Detail, "does not exist")) {
		err = nil
	}
	return errors.Join(err, os.Remove(s.Dir))
}

// Scratch creates a filesystem with a random name below parent and mounts it at a new directory.
// Compression is off, so that the disks are measured.
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
		_ = s.Remove(ctx) // it may exist in part; return the error of create
		return nil, err
	}
	return s, nil
}
