package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// scan sets the scan of all pools.
func (r *replica) scan(s zfs.Scan) {
	r.Edit(func(map[string]*zfs.Dataset) { r.Damaged.Scan = s })
}

// TestForeignDisk expects that a pool with the right name and another GUID is refused, and not changed.
func TestForeignDisk(t *testing.T) {
	t.Parallel()
	r := newDisks(t, nil)
	r.AddDisk("offsite", 7)
	r.Attach(7, true)
	run, err := r.try(t)
	require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
	require.ErrorContains(t, err, `the attached pool "offsite" has GUID 7, which is not in disk.pools`)
	require.Equal(t, outcome.Refused, run.Targets[0].Outcome)
	require.Equal(t, "foreign", run.Targets[1].Disk)
	require.Empty(t, r.datasets("offsite"), "not imported")

	require.NoError(t, r.Import(7))
	_, err = r.try(t)
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorContains(t, err, "imported")
	require.Equal(t, []string{"offsite"}, r.datasets("offsite"), "nothing was sent")
	require.NotEmpty(t, r.disks(t)["red"].Hint)
}

// TestDiskWithoutCopy expects that a disk with the right GUID that lacks the copy of earlier runs gets
// nothing: anyone can write a GUID to a disk.
func TestDiskWithoutCopy(t *testing.T) {
	t.Parallel()
	r := newDisks(t, nil)
	r.Attach(blueGUID, true)
	_, err := r.try(t)
	require.NoError(t, err)
	r.AddDisk("offsite", blueGUID) // another one
	r.Attach(blueGUID, true)
	_, err = r.try(t)
	require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
	require.ErrorContains(t, err, "it may be another disk with the same GUID")
	require.Contains(t, fault.HintOf(err), "another label")
	require.Equal(t, decide.DiskAttached, r.disks(t)["blue"].State, "it was only imported read-only, and exported again")
	require.NoError(t, r.Import(blueGUID))
	require.Equal(t, []string{"offsite"}, r.datasets("offsite"), "nothing was sent")
}

// TestDiskWithOtherFilesystems expects that a disk with filesystems outside of the copy that ZFS would mount is refused
// before it becomes writable, also if an administrator imported it, with commands that change it.
func TestDiskWithOtherFilesystems(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"present", "attached", "killed"} {
		r := newDisks(t, nil)
		r.Attach(blueGUID, true)
		require.NoError(t, r.ImportPool(t.Context(), zfs.PoolImport{GUID: blueGUID}))
		for name, at := range map[string]string{"offsite": "/offsite", "offsite/copyist": "/etc", "offsite/copy/mine": "/offsite/copy/mine"} {
			r.Create(name, nil)
			r.Set(name, "canmount", "on")
			r.Set(name, "mountpoint", at)
		}
		require.NoError(t, r.ExportPool(t.Context(), zfs.PoolExport{GUID: blueGUID}))
		hint := "zpool import -N 1111111111111111111\nzfs set canmount=noauto offsite/copyist\nzpool export offsite"
		switch state {
		case "present":
			hint = "zfs set canmount=noauto offsite/copyist"
			require.NoError(t, r.Import(blueGUID))
		case "killed": // a run while it inspected the disk
			require.NoError(t, r.ImportPool(t.Context(), zfs.PoolImport{GUID: blueGUID, ReadOnly: true}))
		}
		writable := false
		r.Around = func(ctx context.Context, op string, _ []string, do func() error) error {
			err := do()
			if op == zfs.OpImport {
				found, _ := r.FindPools(ctx, zfs.PoolQuery{})
				writable = len(found.Imported) > 0 && !found.Imported[0].ReadOnly
			}
			return err
		}
		run, err := r.try(t)
		require.Equal(t, fault.Refused, fault.ClassOf(err), "%s: %v", state, err)
		require.ErrorContains(t, err, "ZFS would mount filesystems of the disk that are not in the copy offsite/copy: offsite/copyist")
		require.Equal(t, hint, run.Targets[0].Hint)
		require.Equal(t, state == "present", run.Targets[0].Disk == "present")
		require.False(t, writable)

		r.Around = nil
		found, err := r.FindPools(t.Context(), zfs.PoolQuery{})
		require.NoError(t, err)
		if state != "present" {
			require.Empty(t, found.Imported, "exported")
			require.NoError(t, r.ImportPool(t.Context(), zfs.PoolImport{GUID: blueGUID}))
		}
		r.Set("offsite/copyist", map[bool]string{true: "mounted", false: "canmount"}[state == "present"], map[bool]string{true: "yes", false: "noauto"}[state == "present"])
		_, err = r.try(t)
		require.NotContains(t, fmt.Sprint(err), "ZFS would mount", state)
	}
}

// TestDiskOfAdministrator expects that a run uses a pool that someone else imported, and does not
// export it.
func TestDiskOfAdministrator(t *testing.T) {
	t.Parallel()
	r := newDisks(t, nil)
	r.Attach(redGUID, true)
	require.NoError(t, r.Import(redGUID))
	run, err := r.try(t)
	require.NoError(t, err)
	require.Equal(t, "present", run.Targets[1].Disk)
	require.Equal(t, outcome.Done, run.Targets[1].Outcome)
	require.Equal(t, "waiting", run.Targets[0].Disk, "its name is in use")
	require.NotEmpty(t, r.datasets("offsite"))
}

// TestDiskVanishes detaches the disk in the middle of a transfer. The run ends as interrupted, does not
// touch the suspended pool, and the next one completes the copy.
func TestDiskVanishes(t *testing.T) {
	t.Parallel()
	r := newDisks(t, nil)
	r.Write("src/a", []byte("x"))
	r.Attach(blueGUID, true)
	var vanished atomic.Bool
	r.Around = func(ctx context.Context, op string, names []string, do func() error) error {
		if vanished.Load() && op != zfs.OpPool && slices.ContainsFunc(names, func(n string) bool { return below(n, "offsite") }) {
			return &zfs.Error{Kind: zfs.PoolFault, Op: op, Detail: "cannot open 'offsite': pool I/O is currently suspended"}
		}
		if op == zfs.OpReceive && !vanished.Load() && slices.Contains(names, "offsite/copy/a") {
			r.Attach(blueGUID, false)
			vanished.Store(true)
			<-ctx.Done() // zfs receive blocks
			return context.Cause(ctx)
		}
		return do()
	}
	run, err := r.try(t)
	require.Equal(t, fault.Interrupted, fault.ClassOf(err), "%v", err)
	require.ErrorContains(t, err, "pool offsite: it is suspended, because its disk is gone")
	require.Contains(t, fault.HintOf(err), "next run")
	require.Equal(t, "suspended", run.Targets[0].Disk)
	require.Contains(t, run.Targets[0].Hint, "zpool clear offsite")

	_, err = r.try(t)
	require.Equal(t, fault.Failed, fault.ClassOf(err), "%v", err)
	require.ErrorContains(t, err, "suspended")
	vanished.Store(false)
	r.Attach(blueGUID, true) // and zpool clear
	r.Around = nil
	run, err = r.try(t)
	require.NoError(t, err)
	require.Equal(t, "removable", run.Targets[0].Disk)
	require.NoError(t, r.Import(blueGUID))
	require.Contains(t, r.datasets("offsite"), "offsite/copy/a")
}

// TestDiskKilled expects that the run after a killed one uses and exports the pool that the killed run
// imported.
func TestDiskKilled(t *testing.T) {
	t.Parallel()
	r := newDisks(t, nil)
	r.Attach(blueGUID, true)
	require.NoError(t, r.ImportPool(t.Context(), zfs.PoolImport{GUID: blueGUID}))
	run, err := r.try(t)
	require.NoError(t, err)
	require.Equal(t, "removable", run.Targets[0].Disk)
	require.Empty(t, r.datasets("offsite"))
}

// TestDiskScrub expects a scrub if it is due, before the export.
func TestDiskScrub(t *testing.T) {
	t.Parallel()
	r := newDisks(t, func(text string) string { return text + "scrub = \"30d\"\n" })
	r.Attach(blueGUID, true)
	scrubs := 0
	r.Around = func(_ context.Context, op string, names []string, do func() error) error {
		if op == zfs.OpScrub {
			require.Equal(t, []string{"offsite"}, names)
			scrubs++
		}
		return do()
	}
	_, err := r.try(t)
	require.NoError(t, err)
	require.Equal(t, 1, scrubs)
	require.Equal(t, r.now, r.disks(t)["blue"].Scrubbed.Unix())
	_, err = r.try(t)
	require.NoError(t, err)
	require.Equal(t, 1, scrubs, "not due")
	r.now += 31 * 24 * 3600
	_, err = r.try(t)
	require.NoError(t, err)
	require.Equal(t, 2, scrubs)
	require.Equal(t, decide.DiskRemovable, r.disks(t)["blue"].State)
}

// TestDiskInUse expects that a pool that cannot be exported makes the run fail, with the consequence.
func TestDiskInUse(t *testing.T) {
	t.Parallel()
	r := newDisks(t, nil)
	r.Attach(blueGUID, true)
	r.Around = func(_ context.Context, op string, _ []string, do func() error) error {
		if op == zfs.OpExport && slices.Contains(r.datasets("offsite"), "offsite/copy") { // not after the read-only import
			return fault.Failf("zfs unmount offsite/copy", "pool offsite is in use: offsite/copy is mounted at /mnt")
		}
		return do()
	}
	run, err := r.try(t)
	require.Equal(t, fault.Failed, fault.ClassOf(err))
	require.ErrorContains(t, err, "the disk must not be removed: cannot export it: pool offsite is in use")
	require.Equal(t, "imported", run.Targets[0].Disk)
	require.Equal(t, "zfs unmount offsite/copy", run.Targets[0].Hint)
	require.Positive(t, run.Targets[0].Sent, "the data arrived")
}

// TestDiskImportFails expects the error of a failed import in the record of its target only.
func TestDiskImportFails(t *testing.T) {
	t.Parallel()
	r := newDisks(t, nil)
	r.Attach(blueGUID, true)
	r.Around = func(_ context.Context, op string, _ []string, do func() error) error {
		if op == zfs.OpImport {
			return errors.New("one or more devices is currently unavailable")
		}
		return do()
	}
	run, err := r.try(t)
	require.Equal(t, fault.Failed, fault.ClassOf(err))
	require.Contains(t, run.Targets[0].Error, "cannot import pool offsite, GUID 1111111111111111111: one or more devices")
	require.Empty(t, run.Targets[1].Error)
	require.Equal(t, 2, run.Snapshots)
}

// TestDiskVanishesWithHolds suspends the pool while its holds are placed. The run ends, although ZFS does
// not answer.
func TestDiskVanishesWithHolds(t *testing.T) {
	t.Parallel()
	r := newDisks(t, nil)
	r.Attach(blueGUID, true)
	r.Around = func(ctx context.Context, op string, names []string, do func() error) error {
		if op == zfs.OpHold && below(names[0], "offsite") {
			r.Attach(blueGUID, false)
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return do()
	}
	run, err := r.try(t)
	require.Equal(t, fault.Interrupted, fault.ClassOf(err), "%v", err)
	require.Equal(t, "suspended", run.Targets[0].Disk)
}

// TestDiskLocked expects that a job with a schedule skips a disk that another job uses.
func TestDiskLocked(t *testing.T) {
	t.Parallel()
	r := newDisks(t, func(text string) string {
		return strings.Replace(text, "source =", "schedule = \"hourly\"\nsource =", 1)
	})
	r.Attach(blueGUID, true)
	unlock, err := statedir.LockDisk(t.Context(), r.dir, blueGUID, false)
	require.NoError(t, err)
	run, err := r.try(t)
	require.NoError(t, err)
	require.Equal(t, "waiting", run.Targets[0].Disk)
	require.Equal(t, "another job uses the disk", r.disks(t)["blue"].Reason)
	unlock()
	run, err = r.try(t)
	require.NoError(t, err)
	require.Equal(t, "removable", run.Targets[0].Disk)
}

// TestDiskScrubFindsErrors expects a run to report the errors that its scrub found.
func TestDiskScrubFindsErrors(t *testing.T) {
	t.Parallel()
	r := newDisks(t, func(text string) string { return text + "scrub = \"30d\"\n" })
	r.Attach(blueGUID, true)
	_, err := r.try(t)
	require.NoError(t, err)
	r.now += 31 * 24 * 3600
	found := zfs.DamagedObject{Dataset: "offsite/copy", Object: "0x2", Shown: "offsite/copy:<0x2>"}
	r.Around = func(_ context.Context, op string, _ []string, do func() error) error {
		if err := do(); op == zfs.OpScrub {
			r.Edit(func(map[string]*zfs.Dataset) { r.Damaged.Objects = []zfs.DamagedObject{found} })
			return err
		} else {
			return err
		}
	}
	run, err := r.try(t)
	require.NoError(t, err)
	require.Len(t, run.Damaged, 1)
	require.Equal(t, "offsite-blue", run.Damaged[0].Target)
	require.Equal(t, "removable", run.Targets[0].Disk)
	r.Attach(blueGUID, false)
	run, err = r.try(t)
	require.NoError(t, err)
	require.Len(t, run.Damaged, 1, "status shows them while the disk is away")
}

// TestDiskVanishesLater detaches the disk while its pool is scrubbed and exported. The run ends as
// interrupted, and the next one continues.
func TestDiskVanishesLater(t *testing.T) {
	t.Parallel()
	for _, at := range []string{zfs.OpScrub, zfs.OpExport} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			r := newDisks(t, func(text string) string { return text + "scrub = \"30d\"\n" })
			r.Attach(blueGUID, true)
			r.Around = func(_ context.Context, op string, _ []string, do func() error) error {
				if op == at && slices.Contains(r.datasets("offsite"), "offsite/copy") { // not after the read-only import
					r.Attach(blueGUID, false)
				}
				err := do()
				if op == zfs.OpScrub && at == op {
					r.scan(zfs.Scan{Running: true, Text: "scrub in progress since Thu Nov 26 09:37:33 2026"})
				}
				return err
			}
			run, err := r.try(t)
			require.Equal(t, fault.Interrupted, fault.ClassOf(err), "%v", err)
			require.Equal(t, "suspended", run.Targets[0].Disk)
			require.Contains(t, run.Targets[0].Hint, "zpool clear offsite")
			require.Positive(t, run.Targets[0].Sent, "the data arrived")

			r.Around = func(_ context.Context, op string, _ []string, do func() error) error {
				if op == zfs.OpScrub {
					t.Error("the interrupted scrub must continue, not start again")
				}
				if op == zfs.OpStatus && at == zfs.OpScrub { // it ends
					defer r.scan(zfs.Scan{Text: "scrub repaired 0B in 00:00:01 with 0 errors on " + time.Unix(r.now, 0).Format(time.ANSIC)})
				}
				return do()
			}
			r.Attach(blueGUID, true)
			run, err = r.try(t)
			require.NoError(t, err)
			require.Equal(t, "removable", run.Targets[0].Disk)
			require.False(t, r.disks(t)["blue"].Scrubbed.IsZero())
		})
	}
}
