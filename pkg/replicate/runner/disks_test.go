package runner

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

const (
	blueGUID = 1111111111111111111
	redGUID  = 2222222222222222222
)

// newDisks returns a job with a target on two disks, which are away. change changes the job file.
func newDisks(t *testing.T, change func(text string) string) *replica {
	t.Helper()
	text := `[[job]]
name = "j"
source = "src"
recursive = true
snapshots = { take = "s_%Y-%m-%d_%H:%M:%S" }
retention = { last = 2 }
prune_limit = 1000
[[job.target]]
name = "offsite"
to = "offsite/copy"
[job.target.disk]
pools = { blue = "1111111111111111111", red = "2222222222222222222" }
import = true
export = true
late = "14d"
`
	if change != nil {
		text = change(text)
	}
	f, err := replicate.Parse("j.toml", []byte(text))
	require.NoError(t, err)
	r := newReplica(t, replicate.Job{})
	r.job = &f.Jobs[0]
	r.AddDisk("offsite", blueGUID)
	r.AddDisk("offsite", redGUID)
	return r
}

// try runs the job once and returns the record and the error of the command.
func (r *replica) try(t *testing.T) (*statedir.Run, error) {
	t.Helper()
	r.now += 3600
	run, err := r.runner(t).Run(t.Context(), r.job, true)
	require.NotNil(t, run)
	return run, err
}

// disks returns the recorded states of the disks by label.
func (r *replica) disks(t *testing.T) map[string]*replicate.DiskState {
	t.Helper()
	st, err := statedir.Peek(r.dir, "j").State()
	require.NoError(t, err)
	return map[string]*replicate.DiskState{"blue": st.Disks["offsite-blue"], "red": st.Disks["offsite-red"]}
}

// scan sets the scan of all pools.
func (r *replica) scan(s zfs.Scan) {
	r.Edit(func(map[string]*zfs.Dataset) { r.Damaged.Scan = s })
}

// TestDisksRotate rotates two disks. Each gets increments, and the source keeps the common snapshot of
// the disk that is away.
func TestDisksRotate(t *testing.T) {
	t.Parallel()
	r := newDisks(t, nil)
	run, err := r.try(t)
	require.NoError(t, err)
	require.Equal(t, outcome.Done, run.Outcome)
	require.Equal(t, "away", run.Targets[0].Disk)
	require.Empty(t, run.Targets[0].Outcome)
	require.Equal(t, 2, run.Snapshots, "the source gets its snapshots without a disk")

	full := 0
	for round, label := range []string{"blue", "red", "blue", "red"} {
		guid := map[string]uint64{"blue": blueGUID, "red": redGUID}[label]
		r.Attach(guid, true)
		for range 3 {
			run, err = r.try(t)
			require.NoError(t, err)
		}
		i := slices.IndexFunc(run.Targets, func(x *statedir.TargetRun) bool { return x.Target == "offsite-"+label })
		require.Equal(t, outcome.Done, run.Targets[i].Outcome)
		require.Equal(t, "removable", run.Targets[i].Disk)
		require.Equal(t, "away", run.Targets[1-i].Disk)
		for _, d := range run.Targets[i].Datasets {
			full += d.Full
		}
		require.Empty(t, r.datasets("offsite"), "exported")
		r.Attach(guid, false)
		runs, err := statedir.Peek(r.dir, "j").Runs(3)
		require.NoError(t, err)
		for _, past := range runs {
			for _, d := range past.Targets[i].Datasets {
				if round > 1 {
					require.Zero(t, d.Full, "%s gets an increment", label)
				}
			}
		}
		if round == 0 {
			for range 5 {
				_, err = r.try(t)
				require.NoError(t, err)
			}
		}
	}
	st, err := statedir.Peek(r.dir, "j").State()
	require.NoError(t, err)
	for _, label := range []string{"blue", "red"} {
		a := st.Datasets["src/a"].Targets["offsite-"+label]
		require.Contains(t, r.names("src/a"), a.Base, "the common snapshot of %s", label)
		require.Equal(t, []string{"zxfer:j:offsite-" + label}, r.held("src/a@"+a.Base))
	}
	require.LessOrEqual(t, len(r.names("src/a")), 4, "retention applies to the others")
}

// TestDiskHoldLimit expects that after the limit a bookmark replaces the hold of an absent disk, in two
// runs, and that the next send is an increment.
func TestDiskHoldLimit(t *testing.T) {
	t.Parallel()
	r := newDisks(t, func(text string) string { return text + "hold = \"30d\"\n" })
	r.Attach(blueGUID, true)
	_, err := r.try(t)
	require.NoError(t, err)
	r.Attach(blueGUID, false)
	st, err := statedir.Peek(r.dir, "j").State()
	require.NoError(t, err)
	base := st.Datasets["src/a"].Targets["offsite-blue"].Base
	r.now += 29 * 24 * 3600
	_, err = r.try(t)
	require.NoError(t, err)
	require.NotEmpty(t, r.held("src/a@"+base))
	bookmark := r.names("src/a", zfs.Bookmark)[0]
	require.NoError(t, r.Destroy(t.Context(), []string{"src/a#" + bookmark})) // as if the first run had not made it
	r.now += 2 * 24 * 3600
	for range 3 {
		_, err = r.try(t)
		require.NoError(t, err)
	}
	require.Equal(t, []string{bookmark}, r.names("src/a", zfs.Bookmark), "made again")
	for range 3 {
		_, err = r.try(t)
		require.NoError(t, err)
	}
	require.NotContains(t, r.names("src/a"), base, "retention destroys it")
	require.Equal(t, []string{bookmark}, r.names("src/a", zfs.Bookmark), "runs keep the bookmark")
	r.Attach(blueGUID, true)
	run, err := r.try(t)
	require.NoError(t, err)
	require.Equal(t, outcome.Done, run.Targets[0].Outcome)
	for _, d := range run.Targets[0].Datasets {
		require.Zero(t, d.Full, "%s", d.Source)
	}
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
	require.Equal(t, decide.DiskRemovable, r.disks(t)["blue"].State, "the run exports it again")
	require.NoError(t, r.Import(blueGUID))
	require.Equal(t, []string{"offsite"}, r.datasets("offsite"), "nothing was sent")
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

// TestTwoDisksAttached expects that of two attached disks each run uses the one with older copies.
func TestTwoDisksAttached(t *testing.T) {
	t.Parallel()
	r := newDisks(t, nil)
	r.Attach(blueGUID, true)
	r.Attach(redGUID, true)
	for _, want := range [][2]string{{"removable", "waiting"}, {"waiting", "removable"}, {"removable", "waiting"}} {
		run, err := r.try(t)
		require.NoError(t, err)
		require.Equal(t, want, [2]string{run.Targets[0].Disk, run.Targets[1].Disk})
	}
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
		if op == zfs.OpExport {
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

// TestDiskNotImported expects that without the permission a run does not import a disk.
func TestDiskNotImported(t *testing.T) {
	t.Parallel()
	r := newDisks(t, func(text string) string { return strings.Replace(text, "import = true\nexport = true\n", "", 1) })
	r.Attach(blueGUID, true)
	run, err := r.try(t)
	require.NoError(t, err)
	require.Equal(t, "attached", run.Targets[0].Disk)
	require.Empty(t, r.datasets("offsite"))
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

// TestDiskPreview expects that a preview imports nothing, and shows what a run would do.
func TestDiskPreview(t *testing.T) {
	t.Parallel()
	r := newDisks(t, func(text string) string { return text + "scrub = \"30d\"\n" })
	r.AddDisk("usb", 9)
	r.Attach(9, true)
	r.Attach(blueGUID, true)
	p, err := r.runner(t).Preview(t.Context(), r.job)
	require.NoError(t, err)
	require.NoError(t, p.Err())
	require.Equal(t, "attached", p.Targets[0].Disk.State)
	require.Equal(t, "imports it, and sends to it, scrubs it, and exports it", p.Targets[0].Disk.Next)
	require.Equal(t, "away", p.Targets[1].Disk.State)
	require.Equal(t, []string{"usb (attached): 9", "offsite (attached): 1111111111111111111"}, p.Targets[1].Disk.Pools)
	require.Empty(t, r.datasets("offsite"))
}

// TestDiskStatus expects that an absent disk is late by its own limit only.
func TestDiskStatus(t *testing.T) {
	t.Parallel()
	r := newDisks(t, func(text string) string {
		return strings.Replace(text, "source =", "schedule = \"hourly\"\nsource =", 1)
	})
	r.Attach(blueGUID, true)
	_, err := r.try(t)
	require.NoError(t, err)
	r.Attach(blueGUID, false)
	_, err = r.try(t)
	require.NoError(t, err)
	status := func() *JobStatus {
		s := StatusOf([]*replicate.Job{r.job}, r.dir, time.Unix(r.now, 0), nil)
		require.Len(t, s.Jobs, 1)
		return s.Jobs[0]
	}
	j := status()
	require.Equal(t, OK, j.State, "%+v", j)
	require.Len(t, j.Disks, 2)
	require.Equal(t, "away", j.Disks[0].State)
	require.False(t, j.Disks[0].Since.IsZero())
	r.now += 13 * 24 * 3600
	_, err = r.try(t)
	require.NoError(t, err)
	require.False(t, status().Late)
	r.now += 2 * 24 * 3600
	_, err = r.try(t)
	require.NoError(t, err)
	j = status()
	require.True(t, j.Late)
	require.Equal(t, Late, j.State)
	require.Len(t, j.Problems, 2, "both disks: one was never seen")
	require.Contains(t, j.Problems[0].Error, "away since")
	r.Attach(blueGUID, true)
	_, err = r.try(t)
	require.NoError(t, err)
	j = status()
	require.False(t, j.Disks[0].Late)
	require.True(t, j.Disks[1].Late)
	require.Equal(t, []string{"offsite-red"}, j.Problems[0].To)
	require.Len(t, j.Problems, 1)
}

// TestDiskHolds expects that holds skips disks that are away, and pools that have their name.
func TestDiskHolds(t *testing.T) {
	t.Parallel()
	r := newDisks(t, nil)
	r.Attach(blueGUID, true)
	_, err := r.try(t)
	require.NoError(t, err)
	r.AddDisk("offsite", 7)
	r.Attach(7, true)
	f := &replicate.File{Jobs: []replicate.Job{*r.job}}
	for _, imported := range []uint64{0, 7} {
		if imported != 0 {
			require.NoError(t, r.Import(imported))
		}
		held, err := r.runner(t).Holds(t.Context(), f, true)
		require.NoError(t, err)
		for _, h := range held {
			require.True(t, below(h.Snapshot, "src"), h.Snapshot)
			require.False(t, h.Stale, "the disk needs it")
		}
		require.NotEmpty(t, held)
	}
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
				if op == at {
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
