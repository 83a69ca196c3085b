package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/freeze"
	"zxfer/pkg/freeze/guard"
	"zxfer/pkg/hosts"
	"zxfer/pkg/hosts/hoststest"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// TestMain runs this test binary as the watchdog if its only argument is guard.Verb.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == guard.Verb {
		if err := guard.Serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// application returns a freeze that logs its calls in dir. A call fails if dir has a file with the
// call's name.
func application(dir, name string, datasets ...string) replicate.Freeze {
	do := func(what string) []string {
		return []string{"/bin/sh", "-c", `echo $1 >>"$0/log"; test ! -e "$0/$1"`, dir, what + "-" + name}
	}
	return replicate.Freeze{Spec: freeze.Spec{Kind: freeze.Command, Name: name, Freeze: do("freeze"), Thaw: do("thaw")}, Datasets: datasets}
}

func newFrozen(t *testing.T, applications ...func(dir string) replicate.Freeze) (r *replica, dir string) {
	t.Helper()
	j, dir := snapshotJob(), t.TempDir()
	for _, a := range applications {
		j.Freeze = append(j.Freeze, a(dir))
	}
	return newReplica(t, j), dir
}

// done returns the log lines since the last call, and deletes the log.
func done(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "log"))
	if !os.IsNotExist(err) {
		require.NoError(t, err)
		require.NoError(t, os.Remove(filepath.Join(dir, "log")))
	}
	return strings.Join(strings.Fields(string(text)), " ")
}

func (r *replica) marked(t *testing.T, snapshot string) string {
	t.Helper()
	found, err := r.Properties(t.Context(), []string{snapshot}, []string{freeze.Property})
	require.NoError(t, err)
	return found[snapshot][freeze.Property].Value
}

func (r *replica) consistent(t *testing.T) (out []string) {
	t.Helper()
	for _, d := range r.status(t).Datasets {
		if d.Consistent != nil {
			out = append(out, fmt.Sprint(d.Source, " ", *d.Consistent))
		}
	}
	return out
}

// TestFrozenSnapshots expects that an application is frozen while its snapshots are taken, and that
// only these snapshots are marked.
func TestFrozenSnapshots(t *testing.T) {
	t.Parallel()
	r, dir := newFrozen(t,
		func(dir string) replicate.Freeze { return application(dir, "db", "a") },
		func(dir string) replicate.Freeze { return application(dir, "vm", "a", "b") })
	r.Create("src/b", nil)
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.Error)
	require.Contains(t, []string{"freeze-db freeze-vm thaw-vm thaw-db", "freeze-db freeze-vm thaw-db thaw-vm"}, done(t, dir))
	name := r.names("src/a")[0]
	require.Equal(t, []string{"db,vm", "vm", ""}, []string{r.marked(t, "src/a@"+name), r.marked(t, "src/b@"+name), r.marked(t, "src@"+name)})
	require.Equal(t, []string{"src/a true", "src/b true"}, r.consistent(t))
	metrics := r.metrics(t)
	require.Contains(t, metrics, `zxfer_replicate_dataset_consistent{job="j",source="src/a",target="t"} 1`)
	require.NotContains(t, metrics, `zxfer_replicate_dataset_consistent{job="j",source="src",`)
	require.Len(t, run.Frozen, 2)
	require.Equal(t, 1, run.Frozen[0].Datasets)
	require.Positive(t, run.Frozen[0].Seconds)

	// If a freeze fails, the run takes no snapshot of the application and ends as refused.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "freeze-vm"), nil, 0o600))
	r.now += 3600
	run, _ = r.run(t)
	require.Equal(t, outcome.Refused, run.Outcome)
	require.Contains(t, run.Error, "no snapshot was taken: vm: /bin/sh: exit status 1")
	require.Contains(t, run.Hint, `on_failure = "continue"`)
	require.Contains(t, []string{"freeze-db freeze-vm thaw-vm thaw-db", "freeze-db freeze-vm thaw-db thaw-vm"}, done(t, dir))
	require.Len(t, r.names("src/a"), 1)
	require.Equal(t, []string{"src/a true", "src/b true"}, r.consistent(t), "of received snapshots")

	// With OnFailure "continue", the run takes the snapshots and marks them as not consistent.
	r.job.Freeze[1].OnFailure = "continue"
	r.now += 3600
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.Error)
	require.Contains(t, strings.Join(run.Notes, "\n"), "not consistent: vm: ")
	require.Equal(t, []string{"src/a false", "src/b false"}, r.consistent(t))
	name = r.names("src/a")[1]
	require.Equal(t, []string{"", ""}, []string{r.marked(t, "src/a@"+name), r.marked(t, "src/b@"+name)})
	require.Len(t, r.state()["src/a"], 3, "also bookmarks")

	// A failed thaw fails the run, although it took the snapshots.
	require.NoError(t, os.Remove(filepath.Join(dir, "freeze-vm")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "thaw-vm"), nil, 0o600))
	r.now += 3600
	run, _ = r.run(t)
	require.Equal(t, outcome.Failed, run.Outcome)
	require.Contains(t, run.Error, "vm: thaw: ")
	require.True(t, run.Frozen[1].ThawFailed)
	require.Equal(t, 3, run.Targets[0].Sent)
}

// TestFrozenPartially expects that a refused snapshot affects an application only if it is a
// snapshot of the application's datasets.
func TestFrozenPartially(t *testing.T) {
	t.Parallel()
	r, dir := newFrozen(t, func(dir string) replicate.Freeze { return application(dir, "db", "a", "b") })
	for _, n := range []string{"b", "c", "d"} {
		r.Create("src/"+n, nil)
	}
	r.fail(zfs.OpSnapshot, "src/d", &zfs.Error{Kind: zfs.NoSpace, Op: zfs.OpSnapshot, Detail: "out of space"})
	run, _ := r.run(t)
	require.Equal(t, outcome.Failed, run.Outcome)
	require.Contains(t, run.Error, "out of space")
	require.Equal(t, 4, run.Snapshots)
	require.Equal(t, []string{"src/a true", "src/b true"}, r.consistent(t), done(t, dir))

	r.fail(zfs.OpSnapshot, "src/b", &zfs.Error{Kind: zfs.NoSpace, Op: zfs.OpSnapshot, Detail: "out of space"})
	r.now += 3600
	run, _ = r.run(t)
	require.Contains(t, run.Error, "a snapshot of 2 datasets", "all snapshots or none")
	require.Equal(t, 3, run.Snapshots)
	require.Len(t, r.names("src/a"), 1)

	r.job.Freeze[0].OnFailure = "continue"
	r.now += 3600
	run, _ = r.run(t)
	require.Equal(t, 4, run.Snapshots)
	require.Len(t, r.names("src/a"), 2)
	require.Equal(t, []string{"src/a false"}, r.consistent(t)[:1])
}

// TestFrozenUnchanged expects that if one dataset of an application changed, all its datasets are
// snapshotted. If none changed, the application is not frozen.
func TestFrozenUnchanged(t *testing.T) {
	t.Parallel()
	r, dir := newFrozen(t, func(dir string) replicate.Freeze { return application(dir, "db", "a", "b") })
	r.job.Snapshots.SkipUnchanged = true
	r.Create("src/b", nil)
	r.run(t)
	done(t, dir)
	for range 3 {
		r.now += 3600
		run, _ := r.run(t)
		require.Equal(t, outcome.UpToDate, run.Outcome)
		require.Empty(t, done(t, dir))
	}
	r.now += 3600
	r.Set("src/b", "written", "8192")
	run, _ := r.run(t)
	require.Equal(t, 2, run.Snapshots)
	require.Equal(t, "freeze-db thaw-db", done(t, dir))
	require.Len(t, r.names("src/a"), 2)
	require.Len(t, r.names("src"), 1)
	require.Equal(t, []string{"src/a true", "src/b true"}, r.consistent(t))
}

// TestFrozenChangesAreFound expects that changes are found even if other datasets have later snapshots, and
// without a target.
func TestFrozenChangesAreFound(t *testing.T) {
	t.Parallel()
	r, _ := newFrozen(t, func(dir string) replicate.Freeze { return application(dir, "db", "a") })
	r.job.Targets, r.job.Snapshots.SkipUnchanged = nil, true
	for range 2 {
		run, _ := r.run(t)
		require.NotEqual(t, outcome.Failed, run.Outcome, run.Error)
		require.Equal(t, []string{"src/a true"}, r.consistent(t))
		r.now += 3600
	}
	r.job.Snapshots.Adopt = []string{"mine"}
	r.snapshot("src/a", "mine")
	r.run(t)
	require.Len(t, r.names("src/a"), 3)
	r.now += 3600
	r.run(t)
	require.Equal(t, []string{"src/a true"}, r.consistent(t))
}

// TestFrozenPreview expects that a preview lists what a run would freeze, and freezes nothing.
func TestFrozenPreview(t *testing.T) {
	t.Parallel()
	r, dir := newFrozen(t, func(dir string) replicate.Freeze { return application(dir, "db", "a") })
	p, err := r.runner(t).Preview(t.Context(), r.job)
	require.NoError(t, err)
	require.Len(t, p.Frozen, 1)
	require.Equal(t, []string{"src/a"}, p.Frozen[0].Datasets)
	require.Empty(t, done(t, dir))
}

// TestFreezeWithMissingDatasets expects that a freeze with missing datasets freezes nothing. The job
// takes no snapshot or marks it as not consistent, and a preview reports it.
func TestFreezeWithMissingDatasets(t *testing.T) {
	t.Parallel()
	r, dir := newFrozen(t,
		func(dir string) replicate.Freeze { return application(dir, "db", "a", "wall") },
		func(dir string) replicate.Freeze { return application(dir, "mail", "nosuch") })
	r.job.Freeze[0].OnFailure = "continue"
	p, err := r.runner(t).Preview(t.Context(), r.job)
	require.NoError(t, err)
	require.Len(t, p.Denied, 2)
	require.Equal(t, []string{"source", `freeze "mail"`, `datasets: "nosuch" matches none of the job's datasets`}, []string{p.Denied[1].Target, p.Denied[1].Key, p.Denied[1].Error})
	require.Error(t, p.Err())
	run, _ := r.run(t)
	require.Equal(t, outcome.Refused, run.Outcome)
	require.Contains(t, run.Error, `no snapshot was taken: mail: datasets: "nosuch" matches none`)
	require.Contains(t, run.Hint, `on_failure = "continue"`)
	require.Empty(t, r.names("src/a"))

	r.job.Freeze[1].OnFailure = "continue"
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.Error)
	require.Contains(t, strings.Join(run.Notes, "\n"), `not consistent: mail: datasets: "nosuch" matches`)
	require.Contains(t, strings.Join(run.Notes, "\n"), `not consistent: db: datasets: "wall" matches`)
	require.Equal(t, []string{"src/a false"}, r.consistent(t), "a partially frozen application is not frozen")
	require.Empty(t, done(t, dir))

	// If all datasets exist, the run succeeds, even without changes.
	for _, n := range []string{"wall", "nosuch"} {
		r.Create("src/"+n, nil)
	}
	r.job.Snapshots.SkipUnchanged = true
	for _, want := range []string{outcome.Done, outcome.UpToDate} {
		r.now += 3600
		run, _ = r.run(t)
		require.Equal(t, want, run.Outcome, run.Error)
		require.Empty(t, run.Notes)
	}
	p, err = r.runner(t).Preview(t.Context(), r.job)
	require.NoError(t, err)
	require.Empty(t, p.Denied)
}

// restrictedReplica is a host reached with a restricted key.
type restrictedReplica struct{ *replica }

type restrictedHost struct{ *hosts.Local }

func (b restrictedHost) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, b.Local, r, hoststest.With(hosts.OpSnapshotFrozen, b.SnapshotFrozen))
}

func (restrictedHost) SnapshotFrozen(context.Context, freeze.Request) (r freeze.Result, err error) {
	return r, hosts.ErrForbidden
}

func (k restrictedReplica) Open(ctx context.Context, l hosts.Address) (hosts.Host, error) {
	st, err := k.replica.Open(ctx, l)
	return restrictedHost{st.(captured).Local}, err
}

// TestFreezeByRestrictedKey expects that a preview and a run report that a restricted key forbids
// freezing.
func TestFreezeByRestrictedKey(t *testing.T) {
	t.Parallel()
	r, dir := newFrozen(t, func(dir string) replicate.Freeze { return application(dir, "db") })
	by := New(r.dir, restrictedReplica{r}, func() time.Time { return time.Unix(r.now, 0) }, func(s string) { t.Log(s) })
	p, err := by.Preview(t.Context(), r.job)
	require.NoError(t, err)
	require.Len(t, p.Denied, 1)
	require.Equal(t, []string{"source", "freeze"}, []string{p.Denied[0].Target, p.Denied[0].Key})
	require.Error(t, p.Err())
	run, _ := by.Run(t.Context(), r.job, true)
	require.Contains(t, run.Error, p.Denied[0].Error)
	require.Equal(t, run.Hint, p.Denied[0].Hint)
	require.Empty(t, done(t, dir))
}
