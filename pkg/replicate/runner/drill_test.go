package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/drill"
	"zxfer/pkg/replicate/holds"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// drilled returns a replica whose job ran, and the directories of the source and the target.
func drilled(t *testing.T, d *replicate.Drill) (r *replica, source, there string) {
	t.Helper()
	r = newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: replicate.DefaultTemplate}, Drill: d})
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run)
	source, there = t.TempDir(), t.TempDir()
	for _, dir := range []string{source, there} {
		for _, f := range []string{"a", "b", "c"} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, f), []byte(f), 0o600))
			require.NoError(t, os.Chtimes(filepath.Join(dir, f), time.Unix(1, 0), time.Unix(1, 0)))
		}
		require.NoError(t, os.Chtimes(dir, time.Unix(1, 0), time.Unix(1, 0)))
	}
	for copied, from := range map[string]string{"dst/copy": "src", "dst/copy/a": "src/a"} {
		name := r.names(from)[0]
		r.SetFiles(from+"@"+name, source)
		r.SetFiles(copied+"@"+name, there)
	}
	return r, source, there
}

func (r *replica) drill(t *testing.T, o drill.Options) (*statedir.Drill, error) {
	t.Helper()
	d, err := drill.Run(t.Context(), r.runner(t).Env, r.job, o)
	for _, n := range r.datasets("dst") {
		require.False(t, zfs.IsDrillClone(n), "no clone is kept: %s", n)
	}
	return d, err
}

func (r *replica) currentStatus() *status.JobStatus {
	return status.Of([]*replicate.Job{r.job}, r.dir, time.Unix(r.now, 0), nil).Jobs[0]
}

// TestDrillOfGoodCopies expects that good copies are read, compared and recorded, and that a
// concurrent run is not disturbed.
func TestDrillOfGoodCopies(t *testing.T) {
	t.Parallel()
	r, _, _ := drilled(t, &replicate.Drill{Schedule: "weekly", Command: []string{"/bin/true"}})
	require.False(t, r.currentStatus().Drill.Late, "the schedule is new")
	r.now += 3 * 24 * 3600
	st := r.currentStatus()
	require.True(t, st.Drill.Late, "no drill yet")
	require.Equal(t, 2, st.Drill.Copies)
	require.Less(t, st.Drill.Age, st.Drill.Critical)
	r.now += 13 * 24 * 3600
	require.Greater(t, r.currentStatus().Drill.Age, st.Drill.Critical, "a second drill was missed")
	d, err := r.drill(t, drill.Options{Sample: 1e-9})
	require.NoError(t, err)
	require.Len(t, d.Copies, 2)
	for _, c := range d.Copies {
		require.Equal(t, outcome.Done, c.Outcome)
		require.True(t, c.Compared)
		require.Equal(t, "files", c.Read)
		require.EqualValues(t, 3, c.Files)
		require.Equal(t, "passed", c.Command)
		require.Contains(t, c.Output, "/bin/true")
	}
	require.NotZero(t, d.Seed)
	st = r.currentStatus()
	require.Empty(t, st.Drill.NotGood)
	require.False(t, st.Drill.Late)
	require.Equal(t, 2, st.Drill.Copies)
	require.Equal(t, d.Started, st.Drill.Good)

	r.now += 8 * 24 * 3600
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome)
	st = r.currentStatus()
	require.Equal(t, status.Late, st.State, "the drill's week is over by more than a day")
	require.True(t, st.Late)
	require.False(t, st.Failed)
	require.Contains(t, st.Problems[0].Error, "was 8 days ago")
	require.Less(t, st.Drill.Age, st.Drill.Critical)

	all, err := statedir.Peek(r.dir, "j").DrillLog(5)
	require.NoError(t, err)
	require.Len(t, all, 1)
	text, err := status.Metrics(&replicate.File{Jobs: []replicate.Job{*r.job}}, r.dir, time.Unix(r.now, 0))
	require.NoError(t, err)
	require.Contains(t, string(text), `zxfer_replicate_drill_good{job="j",source="src/a",target="t"} 1`)
}

// TestDrillFindsDifferences expects that differences are found and listed, and that status shows
// them until a drill succeeds.
func TestDrillFindsDifferences(t *testing.T) {
	t.Parallel()
	r, _, there := drilled(t, nil)
	require.NoError(t, os.WriteFile(filepath.Join(there, "b"), []byte("X"), 0o600))
	require.NoError(t, os.Remove(filepath.Join(there, "c")))
	d, err := r.drill(t, drill.Options{Seed: 7})
	require.ErrorContains(t, err, "its files differ from src@zxfer_j_2026-11-01_08:00:00")
	require.Equal(t, fault.Failed, fault.ClassOf(err))
	require.Equal(t, outcome.Failed, d.Outcome)
	require.Contains(t, d.Copies[0].Differ, "b has different contents")
	require.Contains(t, d.Copies[0].Differ, "c is missing")
	st := r.currentStatus()
	require.Equal(t, outcome.Failed, st.State)
	require.Len(t, st.Drill.NotGood, 2)
	require.True(t, st.Drill.Good.IsZero())
	require.Contains(t, st.Problems[0].Error, "the copy is NOT GOOD")

	require.NoError(t, os.WriteFile(filepath.Join(there, "b"), []byte("b"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(there, "c"), []byte("c"), 0o600))
	for _, f := range []string{"b", "c", "."} {
		require.NoError(t, os.Chtimes(filepath.Join(there, f), time.Unix(1, 0), time.Unix(1, 0)))
	}
	_, err = r.drill(t, drill.Options{Seed: 7})
	require.NoError(t, err)
	require.Equal(t, status.OK, r.currentStatus().State)
}

// TestDrillOfEncryptedCopies expects that an encrypted copy is verified only with its key.
func TestDrillOfEncryptedCopies(t *testing.T) {
	t.Parallel()
	r, _, _ := drilled(t, &replicate.Drill{})
	for _, name := range []string{"src", "src/a", "dst/copy", "dst/copy/a"} {
		r.encrypt(name)
	}
	d, err := r.drill(t, drill.Options{})
	require.Error(t, err)
	require.Equal(t, statedir.Unverified, d.Outcome)
	require.Equal(t, "stream", d.Copies[0].Read)
	require.True(t, d.Copies[0].Compared, "its blocks equal the source's")
	require.Contains(t, d.Copies[0].Hint, "drill.key_file")
	require.Equal(t, statedir.Unverified, r.currentStatus().State)

	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, nil, 0o600))
	r.job.Drill.KeyFile, r.Run = key, t.TempDir()
	d, err = r.drill(t, drill.Options{})
	require.NoError(t, err)
	require.Equal(t, "files", d.Copies[0].Read)
	require.False(t, d.Copies[0].Compared, "a drill does not load the key of the source")
	require.Contains(t, d.Copies[0].Note, "not compared")
	require.Equal(t, "unavailable", r.Get("dst/copy", "keystatus"))
}

// TestDrillCommandAndSource expects that a failed command makes the copy bad, and that an
// unreachable source only prevents the comparison.
func TestDrillCommandAndSource(t *testing.T) {
	t.Parallel()
	r, _, _ := drilled(t, &replicate.Drill{Command: []string{"/bin/false"}})
	d, err := r.drill(t, drill.Options{})
	require.ErrorContains(t, err, "/bin/false: exit status 1")
	require.Equal(t, "failed", d.Copies[0].Command)

	r.job.Drill = nil
	r.away = "src"
	d, err = r.drill(t, drill.Options{})
	require.NoError(t, err)
	require.False(t, d.Copies[0].Compared)
	require.Contains(t, d.Notes[0], "no route to host")

	r.away = "dst"
	_, err = r.drill(t, drill.Options{})
	require.ErrorContains(t, err, "target t")
	require.Equal(t, outcome.Failed, r.currentStatus().State)
}

// TestDrillCleansUp expects that a drill destroys only the clones of a killed drill, and that a
// missing copy is bad.
func TestDrillCleansUp(t *testing.T) {
	t.Parallel()
	r, _, _ := drilled(t, nil)
	snapshot := "dst/copy@" + r.names("dst/copy")[0]
	for _, job := range []string{"j", "other"} {
		_, err := r.CreateDrillClone(t.Context(), zfs.DrillClone{Snapshot: snapshot, Job: job})
		require.NoError(t, err)
	}
	_, err := drill.Run(t.Context(), r.runner(t).Env, r.job, drill.Options{})
	require.NoError(t, err)
	var left []string
	for _, n := range r.datasets("dst") {
		if zfs.IsDrillClone(n) {
			left = append(left, r.Get(n, zfs.DrillCloneProperty))
		}
	}
	require.Equal(t, []string{"other"}, left)
	require.NoError(t, r.DestroyDrillClones(t.Context(), zfs.DrillClones{Job: "other", Datasets: []string{"dst/copy"}}))

	r.Remove("dst/copy/a")
	d, err := r.drill(t, drill.Options{})
	require.ErrorContains(t, err, "no copy")
	require.Equal(t, outcome.Done, d.Copies[0].Outcome)
	require.Equal(t, outcome.Failed, d.Copies[1].Outcome)
}

// TestDrillDuringRun expects that during a drill, a second drill is refused and a run continues.
// Retention keeps a snapshot that has a clone.
func TestDrillDuringRun(t *testing.T) {
	t.Parallel()
	r, source, there := drilled(t, nil)
	began, goOn := make(chan struct{}), make(chan struct{})
	around := r.Around
	r.Around = func(ctx context.Context, op string, names []string, do func() error) error {
		err := around(ctx, op, names, do)
		if op == zfs.OpClone {
			began <- struct{}{}
			<-goOn
		}
		return err
	}
	ended := make(chan error)
	go func() {
		_, err := drill.Run(context.Background(), r.runner(t).Env, r.job, drill.Options{})
		ended <- err
	}()
	<-began
	_, err := drill.Run(t.Context(), r.runner(t).Env, r.job, drill.Options{})
	require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
	first := r.names("dst/copy")[0]
	for range 4 { // the target keeps the newest 2
		r.now += 3600
		run, _ := r.run(t)
		require.Equal(t, outcome.Done, run.Outcome, run)
	}
	require.Contains(t, r.names("dst/copy"), first, "it has a clone")
	newest := r.names("src/a")[len(r.names("src/a"))-1]
	r.SetFiles("src/a@"+newest, source)
	r.SetFiles("dst/copy/a@"+newest, there)
	close(goOn)
	<-began // the drill of the second copy
	require.NoError(t, <-ended)
	r.now += 3600
	r.run(t)
	require.NotContains(t, r.names("dst/copy"), first)
}

func TestDrillIsInterrupted(t *testing.T) {
	t.Parallel()
	r, _, _ := drilled(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	around := r.Around
	r.Around = func(c context.Context, op string, names []string, do func() error) error {
		err := around(c, op, names, do)
		if op == zfs.OpClone {
			cancel()
		}
		return err
	}
	d, err := drill.Run(ctx, r.runner(t).Env, r.job, drill.Options{})
	require.Equal(t, fault.Interrupted, fault.ClassOf(err), "%v", err)
	require.True(t, errors.Is(err, context.Canceled) || d.Outcome == outcome.Interrupted)
	require.Equal(t, outcome.Interrupted, d.Outcome)
	for _, n := range r.datasets("dst") {
		require.False(t, zfs.IsDrillClone(n), n)
	}
}

// failing makes an operation fail after the given number of successful calls. For zfs.OpGet, it
// counts only the calls for a drill clone.
func (r *replica) failing(on string, after int, err error) {
	around := r.Around
	r.Around = func(c context.Context, op string, names []string, do func() error) error {
		if op == on && (on != zfs.OpGet || zfs.IsDrillClone(names[0])) {
			if after--; after < 0 {
				return err
			}
		}
		return around(c, op, names, do)
	}
}

// TestDrillUnknownState expects that if a copy cannot be cloned, opened or inspected, its state is
// unknown. A read error makes it bad.
func TestDrillUnknownState(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		op   string
		kind zfs.Kind
		want string
	}{
		{zfs.OpClone, zfs.NoSpace, statedir.Unverified},
		{zfs.OpClone, zfs.Unknown, statedir.Unverified},
		{zfs.OpGet, zfs.Busy, statedir.Unverified},
		{zfs.OpGet, zfs.PoolFault, outcome.Failed},
		{"run", zfs.Unknown, statedir.Unverified},
	} {
		r, _, _ := drilled(t, &replicate.Drill{Command: []string{"/bin/true"}})
		r.failing(c.op, 0, &zfs.Error{Kind: c.kind, Op: zfs.OpMount, Subject: "it"})
		d, err := r.drill(t, drill.Options{})
		require.Error(t, err)
		require.Equal(t, c.want, d.Copies[0].Outcome, c)
		if c.kind == zfs.PoolFault {
			require.Equal(t, "scrub its pool: zpool scrub -w dst\nthen repair it from its source: zxfer heal --job j", d.Copies[0].Hint)
		} else {
			require.NotContains(t, d.Copies[0].Hint, "heal")
		}
	}
}

// TestDrillCommandRunsOnce expects that a command is not repeated after a lost connection.
func TestDrillCommandRunsOnce(t *testing.T) {
	t.Parallel()
	r, _, _ := drilled(t, &replicate.Drill{Command: []string{"/bin/true"}})
	runs, around := 0, r.Around
	r.Around = func(c context.Context, op string, names []string, do func() error) error {
		if op == "run" {
			runs++
			return hosts.ErrLost
		}
		return around(c, op, names, do)
	}
	d, err := r.drill(t, drill.Options{})
	require.Equal(t, fault.Interrupted, fault.ClassOf(err), "%v", err)
	require.Equal(t, outcome.Interrupted, d.Copies[0].Outcome)
	require.Equal(t, len(d.Copies), runs)
}

// TestDrillDiffersWithoutNames expects that a known difference makes a copy bad, even if no path is
// known.
func TestDrillDiffersWithoutNames(t *testing.T) {
	t.Parallel()
	r, _, there := drilled(t, nil)
	require.NoError(t, os.WriteFile(filepath.Join(there, "b"), []byte("X"), 0o600))
	r.failing(zfs.OpGet, 1, &zfs.Error{Kind: zfs.Busy, Op: zfs.OpMount, Subject: "it"})
	d, err := r.drill(t, drill.Options{})
	require.ErrorContains(t, err, "its files differ from src@zxfer_j_2026-11-01_08:00:00")
	require.Equal(t, outcome.Failed, d.Copies[0].Outcome)
	require.True(t, d.Copies[0].Compared)
}

// TestDrillStatusNotVerified expects that a copy that was never drilled, or drilled in the future, is
// not verified.
func TestDrillStatusNotVerified(t *testing.T) {
	t.Parallel()
	r, _, _ := drilled(t, &replicate.Drill{Schedule: "weekly"})
	_, err := r.drill(t, drill.Options{})
	require.NoError(t, err)
	at := func(days int) *status.DrillStatus {
		return status.Of([]*replicate.Job{r.job}, r.dir, time.Unix(r.now, 0).Add(time.Duration(days)*24*time.Hour), nil).Jobs[0].Drill
	}
	require.False(t, at(1).Good.IsZero())
	require.True(t, at(-30).Good.IsZero())
	require.True(t, at(-30).Late)
	store := statedir.Peek(r.dir, "j")
	known, err := store.Drills()
	require.NoError(t, err)
	delete(known.Copies, "src/a")
	require.NoError(t, store.SaveDrill(known.Last, known))
	require.Equal(t, 2, at(1).Copies)
	require.True(t, at(1).Good.IsZero())
	require.False(t, at(1).Late, "it is newer than the last drill")
	require.True(t, at(9).Late)
}

// TestDrillSkipsHealSnapshots expects that heal snapshots are skipped, because they can
// be neither mounted nor cloned.
func TestDrillSkipsHealSnapshots(t *testing.T) {
	t.Parallel()
	r, _, _ := drilled(t, &replicate.Drill{})
	name := r.names("src")[0]
	require.NoError(t, r.Snapshot(t.Context(), []string{"dst/copy@" + zfs.HealPrefix + "x"}))
	d, err := r.drill(t, drill.Options{})
	require.NoError(t, err)
	for _, c := range d.Copies {
		require.Equal(t, name, c.Snapshot)
	}
}

// TestHoldsListsDrillClones expects that drill clones are listed. With release, clones of unknown jobs are
// destroyed, unless they lack the property of drill clones.
func TestHoldsListsDrillClones(t *testing.T) {
	t.Parallel()
	r, _, _ := drilled(t, nil)
	snapshot := "dst/copy@" + r.names("dst/copy")[0]
	left := map[string]string{} // by job
	for _, job := range []string{"j", "gone"} {
		var err error
		left[job], err = r.CreateDrillClone(t.Context(), zfs.DrillClone{Snapshot: snapshot, Job: job})
		require.NoError(t, err)
	}
	mine, err := r.CreateDrillClone(t.Context(), zfs.DrillClone{Snapshot: snapshot, Job: "gone"})
	require.NoError(t, err)
	r.Edit(func(all map[string]*zfs.Dataset) { delete(all[mine].Properties, zfs.DrillCloneProperty) })
	clonesOf := func(release bool) (clones []*holds.Held) {
		all, err := holds.List(t.Context(), r.runner(t).Env, &replicate.File{Jobs: []replicate.Job{*r.job}}, release)
		require.NoError(t, err)
		return slices.DeleteFunc(all, func(h *holds.Held) bool { return h.Clone == "" })
	}
	stale := holds.Held{Snapshot: snapshot, Clone: left["gone"], Job: "gone", Stale: true}
	want := []*holds.Held{{Snapshot: snapshot, Clone: left["j"], Job: "j"}, &stale}
	require.ElementsMatch(t, want, clonesOf(false))
	stale.Released = true
	require.ElementsMatch(t, want, clonesOf(true))
	require.Equal(t, want[:1], clonesOf(true))
	require.Contains(t, r.datasets("dst"), mine)

	// A killed process may have left a clone that it read, at the latest after a day.
	clone, err := r.CreateDrillClone(t.Context(), zfs.DrillClone{Snapshot: snapshot, Job: zfs.ReadCloneMark})
	require.NoError(t, err)
	for _, stale := range []bool{false, true} {
		age := map[bool]int64{false: 3600, true: 25 * 3600}[stale]
		r.Edit(func(all map[string]*zfs.Dataset) {
			all[clone].Properties["creation"] = zfs.Property{Value: fmt.Sprint(r.now - age), Source: "-"}
		})
		require.Contains(t, clonesOf(false), &holds.Held{Snapshot: snapshot, Clone: clone, Job: zfs.ReadCloneMark, Stale: stale})
	}
	clonesOf(true)
	require.NotContains(t, r.datasets("dst"), clone)
}

// read records the last progress of a drill.
type read struct {
	callRecorder
	last *connect.Progress
}

func (r read) Progress(_ int, p connect.Progress) { *r.last = p }

// TestDrillReportsProgress expects that a drill reports progress like a transfer, for files and
// streams.
func TestDrillReportsProgress(t *testing.T) {
	t.Parallel()
	r, _, _ := drilled(t, &replicate.Drill{})
	var all []string
	var last connect.Progress
	var mu sync.Mutex
	drill := func() {
		t.Helper()
		all, last = nil, connect.Progress{}
		run := r.runner(t)
		run.Env.Reporter = func(_, target string) send.Reporter {
			if target == "" {
				return nil
			}
			return read{callRecorder{target, &mu, &all}, &last}
		}
		d, _ := drill.Run(t.Context(), run.Env, r.job, drill.Options{})
		require.Len(t, d.Copies, 2)
		require.NotZero(t, last.Bytes)
		require.Equal(t, d.Copies[1].Bytes, last.Bytes)
		require.Equal(t, []string{"t: started dst/copy", "t: finished ", "t: started dst/copy/a", "t: finished "}, all)
	}
	drill()
	r.encrypt("dst/copy")
	r.encrypt("dst/copy/a")
	r.encrypt("src")
	r.encrypt("src/a")
	drill()
}

// TestDrillWithoutResult expects that a drill that was refused or did not finish counts no copy as
// good, and that the alert on the metric of copies fires. Then a good drill, and one that is refused.
func TestDrillWithoutResult(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(cancel func()) error{
		outcome.Refused:     func(func()) error { return fault.Refusef("add the grant", "not permitted") },
		outcome.Interrupted: func(cancel func()) error { cancel(); return context.Canceled },
		outcome.Failed:      func(func()) error { return errors.New("no space") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _, _ := drilled(t, &replicate.Drill{Schedule: "weekly"})
			metrics := func() string {
				text, err := status.Metrics(&replicate.File{Jobs: []replicate.Job{*r.job}}, r.dir, time.Unix(r.now, 0))
				require.NoError(t, err)
				return string(text)
			}
			good := func(value string) {
				t.Helper()
				for _, source := range []string{"src", "src/a"} {
					require.Contains(t, metrics(), `zxfer_replicate_drill_good{job="j",source="`+source+`",target="t"} `+value+"\n")
				}
			}
			require.NotContains(t, metrics(), "zxfer_replicate_drill_good{", "no drill is due")
			stopped := func() {
				t.Helper()
				ctx, cancel := context.WithCancel(t.Context())
				r.before = func(op string, names []string) error {
					if op == zfs.OpList && names[0] == "dst/copy" {
						return stop(cancel)
					}
					return nil
				}
				d, err := drill.Run(ctx, r.runner(t).Env, r.job, drill.Options{})
				require.Error(t, err)
				require.Equal(t, name, d.Outcome)
				require.Empty(t, d.Copies)
				r.before = nil
			}
			stopped()
			st := r.currentStatus()
			require.Equal(t, 2, st.Drill.Copies)
			require.Equal(t, 2, st.Drill.NeverVerified)
			require.True(t, st.Failed)
			require.Equal(t, name, st.State)
			require.Contains(t, st.Problems[0].Error, "the last drill ended as "+name+": target t: ")
			if name == outcome.Refused {
				require.Equal(t, "add the grant", st.Problems[0].Hint)
			}
			good("0")

			r.now += 3600
			first, err := r.drill(t, drill.Options{})
			require.NoError(t, err)
			require.Zero(t, r.currentStatus().Drill.NeverVerified)
			good("1")

			r.now += 3600
			stopped()
			st = r.currentStatus()
			require.Equal(t, name, st.State)
			require.Equal(t, first.Started, st.Drill.Good)
			require.Zero(t, st.Drill.NeverVerified)
			good("0")
		})
	}
}
