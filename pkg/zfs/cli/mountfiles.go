package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/files"
	"zxfer/pkg/zfs"
)

// MountFiles mounts a snapshot or filesystem for this process alone. If acls is true and the dataset
// hides the access control lists of its files (acltype=off), it mounts a clone of the snapshot that
// shows them, or fails. unmount closes the root and destroys the clone.
func (c *CLI) MountFiles(ctx context.Context, source string, acls bool) (root *os.File, unmount func() error, err error) {
	root, err = mountFiles(source)
	if err != nil || !acls || files.ShowsACLs(root) {
		return root, func() error { return root.Close() }, err
	}
	if err := root.Close(); err != nil {
		return nil, nil, err
	}
	if !strings.Contains(source, "@") {
		return nil, nil, hiddenACLs(source, errors.New("acltype=off, and a dataset that can change is not cloned"))
	}
	clone, err := c.createReadClone(ctx, source)
	switch {
	case errors.Is(err, &zfs.Error{Kind: zfs.PoolFault}): // the pool was imported read-only
		return nil, nil, hiddenACLs(source, err)
	case err != nil:
		return nil, nil, fmt.Errorf("cannot read the access control lists of %s: %w", source, err)
	}
	destroy := func() error { return c.destroyReadClone(context.WithoutCancel(ctx), clone) }
	if root, err = mountFiles(clone); err != nil {
		return nil, nil, errors.Join(err, destroy())
	}
	unmount = func() error { return errors.Join(root.Close(), destroy()) }
	if !files.ShowsACLs(root) {
		return nil, nil, errors.Join(hiddenACLs(source, errors.New("its kernel does not support acltype=posix")), unmount())
	}
	return root, unmount, nil
}

// hiddenACLs returns the error for files whose access control lists cannot be read.
func hiddenACLs(source string, cause error) error {
	return &zfs.Error{Kind: zfs.NotSupported, Op: zfs.OpMount, Subject: source,
		Detail: "the access control lists of its files cannot be read: " + cause.Error()}
}

func mountFiles(source string) (*os.File, error) {
	root, err := files.Mount(source)
	if err != nil {
		return nil, mountError(source, err)
	}
	return root, nil
}

// readCloneAge is the age from which an unmounted read clone is a leftover of a killed process. Its own
// process mounts it immediately, and ZFS does not destroy a mounted one. Only tests replace it.
var readCloneAge = time.Hour

// unmountTimeout limits how long a read clone may be busy after it was closed.
const unmountTimeout = 10 * time.Second

// createReadClone clones a snapshot so that its files can be read with their access control lists. It
// first destroys leftovers.
func (c *CLI) createReadClone(ctx context.Context, snapshot string) (string, error) {
	of, _, err := zfs.ParseSnapshot(snapshot)
	if err != nil {
		return "", err
	}
	all, err := c.drillClones(ctx, zfs.PoolOf(of))
	if err != nil {
		return "", err
	}
	n := 0
	for _, one := range all {
		if one.job != zfs.ReadCloneMark {
			continue
		}
		if time.Since(one.created) < readCloneAge {
			n++
			continue
		}
		if err := ignore(c.destroyDrillClone(ctx, one.name), zfs.Busy); err != nil {
			return "", err
		}
	}
	if n > zfs.MaxDrillClones {
		return "", fault.Refusef("wait until the others end", "%d clones of %s are being read", n, zfs.PoolOf(of))
	}
	name := zfs.DrillCloneName(zfs.PoolOf(of), strings.ToLower(rand.Text()[:10]))
	args := append([]string{"clone", "-o", zfs.DrillCloneProperty + "=" + zfs.ReadCloneMark}, filesystemCloneOptions...)
	_, err = c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpClone, Subject: snapshot}, append(args, "-o", "readonly=on", snapshot, name))
	return name, err
}

// filesystemCloneOptions are the properties of each clone of a filesystem: nothing mounts or shares it
// or takes its snapshots automatically, and its files show their access control lists.
var filesystemCloneOptions = []string{"-o", "com.sun:auto-snapshot=false", "-o", "canmount=noauto", "-o", "mountpoint=none",
	"-o", "sharenfs=off", "-o", "sharesmb=off", "-o", "acltype=posix"}

// destroyReadClone destroys a clone that was closed. The kernel may need a moment to unmount it.
func (c *CLI) destroyReadClone(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, unmountTimeout)
	defer cancel()
	for {
		err := c.destroyDrillClone(ctx, name)
		if !errors.Is(err, &zfs.Error{Kind: zfs.Busy}) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the clone is left until the next reading: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// createdAt returns the time of a creation property, or the zero time if it is invalid.
func createdAt(value string) time.Time {
	sec, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(sec, 0)
}
