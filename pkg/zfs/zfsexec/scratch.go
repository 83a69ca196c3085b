package zfsexec

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"time"

	"zxfer/pkg/zfs"
)

// ScratchPrefix begins the names of scratch datasets, so that one which a
// crash left behind is known for what it is.
const ScratchPrefix = "zxfer-doctor-"

// destroyWithin bounds the removal of a scratch dataset, which goes on after
// its context has ended.
const destroyWithin = 30 * time.Second

// Scratch makes a filesystem of a random name below parent, mounts it at a
// new directory, and returns that and what removes both again. Nothing that
// is written there is compressed, so that what is measured is the disks.
func (c *CLI) Scratch(ctx context.Context, parent string) (dir string, remove func() error, err error) {
	if _, err := zfs.ParseDataset(parent); err != nil {
		return "", nil, err
	}
	dir, err = os.MkdirTemp("", ScratchPrefix)
	if err != nil {
		return "", nil, err
	}
	id := make([]byte, 6)
	_, _ = rand.Read(id) // never fails
	name := parent + "/" + ScratchPrefix + hex.EncodeToString(id)
	remove = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyWithin)
		defer cancel()
		_, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpDestroy, Subject: name}, []string{"destroy", "-f", name})
		var e *zfs.Error
		if errors.As(err, &e) && (e.Kind == zfs.NotFound || strings.Contains(e.Detail, "does not exist")) {
			err = nil
		}
		return errors.Join(err, os.Remove(dir))
	}
	args := []string{"create", "-o", "mountpoint=" + dir, "-o", "compression=off", "-o", "canmount=on", "-o", "atime=off", name}
	if _, err = c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpCreate, Subject: name}, args); err != nil {
		_ = remove() // it may be half made; the error of create counts
		return "", nil, err
	}
	return dir, remove, nil
}
