package runner

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/holds"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/retry"
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
	f, err := jobfile.Parse("j.toml", []byte(text))
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

// TestDiskIncomplete expects that a run refuses a pool whose devices do not all appear, also if each
// search takes longer than the run waits for devices.
func TestDiskIncomplete(t *testing.T) {
	t.Parallel()
	for _, search := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			r := newDisks(t, nil)
			r.Attach(blueGUID, true)
			r.Degrade(blueGUID, true)
			r.Around = func(ctx context.Context, op string, _ []string, do func() error) error {
				if op == zfs.OpPool && !retry.Sleep(ctx, search) {
					return context.Cause(ctx)
				}
				return do()
			}
			_, err := r.try(t)
			require.ErrorContains(t, err, "is DEGRADED: zxfer imports only a complete pool")
			require.Equal(t, fault.Refused, fault.ClassOf(err))
			r.Degrade(blueGUID, false)
			run, err := r.try(t)
			require.NoError(t, err)
			require.Equal(t, "removable", run.Targets[0].Disk)
		})
	}
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
	current := func() *status.JobStatus {
		s := status.Of([]*replicate.Job{r.job}, r.dir, time.Unix(r.now, 0), nil)
		require.Len(t, s.Jobs, 1)
		return s.Jobs[0]
	}
	j := current()
	require.Equal(t, status.OK, j.State, "%+v", j)
	require.Len(t, j.Disks, 2)
	require.Equal(t, "away", j.Disks[0].State)
	require.False(t, j.Disks[0].Since.IsZero())
	r.now += 13 * 24 * 3600
	_, err = r.try(t)
	require.NoError(t, err)
	require.False(t, current().Late)
	r.now += 2 * 24 * 3600
	_, err = r.try(t)
	require.NoError(t, err)
	j = current()
	require.True(t, j.Late)
	require.Equal(t, status.Late, j.State)
	require.Len(t, j.Problems, 2, "both disks: one was never seen")
	require.Contains(t, j.Problems[0].Error, "away since")
	r.Attach(blueGUID, true)
	_, err = r.try(t)
	require.NoError(t, err)
	j = current()
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
		held, err := holds.List(t.Context(), r.runner(t).Env, f, true)
		require.NoError(t, err)
		for _, h := range held {
			require.True(t, below(h.Snapshot, "src"), h.Snapshot)
			require.False(t, h.Stale, "the disk needs it")
		}
		require.NotEmpty(t, held)
	}
}

// TestDiskJobWithoutRuns expects that a job whose copies on disks are never late is late if it no longer runs.
func TestDiskJobWithoutRuns(t *testing.T) {
	t.Parallel()
	r := newDisks(t, func(text string) string {
		return strings.NewReplacer("late = \"14d\"\n", "", "recursive = true\n", "recursive = true\nschedule = \"hourly\"\n").Replace(text)
	})
	r.Attach(blueGUID, true)
	_, err := r.try(t)
	require.NoError(t, err)
	current := func(after time.Duration) *status.JobStatus {
		return status.Of([]*replicate.Job{r.job}, r.dir, time.Unix(r.now, 0).Add(after), nil).Jobs[0]
	}
	require.Equal(t, status.OK, current(time.Hour).State)
	js := current(2 * time.Hour)
	require.Equal(t, status.Late, js.State)
	require.True(t, js.Late)
	require.Len(t, js.Problems, 1)
	require.Equal(t, "no run since "+time.Unix(r.now, 0).Format(time.DateTime), js.Problems[0].Error)
	until := time.Unix(r.now, 0).Add(3 * time.Hour)
	s := statedir.Peek(r.dir, "j")
	require.NoError(t, s.SavePause(&decide.Pause{Since: time.Unix(r.now, 0), Until: until}))
	require.Equal(t, status.OK, current(2*time.Hour).State)
	require.Equal(t, status.Late, current(5*time.Hour).State)
}
