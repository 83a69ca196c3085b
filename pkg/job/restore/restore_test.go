package restore

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/hosts/hoststest"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// TestRestoreContinuesAfterFailure fails each operation of the last stage, and expects that the same command
// completes the restore. Only restored datasets may change.
func TestRestoreContinuesAfterFailure(t *testing.T) {
	t.Parallel()
	handsOver := func(op string) bool {
		verb, _, _ := strings.Cut(op, " ")
		return slices.Contains([]string{zfs.OpSet, zfs.OpMount, zfs.OpChangeKey}, verb)
	}
	req := Request{Mount: true, Send: sendRequest(nil)}
	req.Send.Target, req.Send.Plan.Target = endpoint.Endpoint{Name: "dst/back"}, "dst/back"
	for fails, failed := 1, true; failed; fails++ {
		failed = false
		w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x", "y"}, "src/a/b": {"x", "y"}, "dst": nil})
		for _, name := range []string{"src/a", "src/a/b"} {
			for property, value := range map[string]string{"readonly": "on", "canmount": "noauto", "atime": "off", zfs.FlagsProperty: "Lc"} {
				w.Memory.Set(name, property, value)
			}
		}
		w.Memory.Set("dst", "mountpoint", "/dst")
		n := 0
		var one sync.Mutex // both ends are queried concurrently
		w.Before = func(op string) error {
			one.Lock()
			defer one.Unlock()
			if handsOver(op) {
				n++
			}
			if failed = failed || n == fails; n == fails {
				return errors.New("broken")
			}
			return nil
		}
		r, err := Run(t.Context(), req, hosts.New(w), send.Quiet{})
		if failed {
			require.Error(t, err)
		}
		w.Before = nil
		if err != nil {
			r, err = Run(t.Context(), req, hosts.New(w), send.Quiet{})
		}
		require.NoError(t, err, "failed at %d", fails)
		require.Equal(t, outcome.Done, r.Outcome, "failed at %d", fails)
		for _, name := range []string{"dst/back", "dst/back/b"} {
			for property, value := range map[string]string{"readonly": "", "canmount": "noauto", zfs.CanMountProperty: "on", "atime": "off", zfs.FlagsProperty: "", zfs.RestoreProperty: ""} {
				require.Equal(t, value, w.Memory.Get(name, property), "%s of %s, failed at %d", property, name, fails)
			}
		}
		require.Less(t, fails, 20)
	}
}

// TestRestoreOverDatasetInUse expects that a dataset in use is not rolled back, and that the message
// lists the loss.
func TestRestoreOverDatasetInUse(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x", "y"}, "dst": nil})
	w.Memory.Copy("src/a", "dst/a", "x")
	w.Memory.Set("dst/a", "mounted", "yes")
	req := Request{Send: sendRequest(func(s *send.Request) { s.Plan.Recursive = false })}
	run := func() (*send.Report, error) { return Run(t.Context(), req, hosts.New(w), send.Quiet{}) }
	_, err := run()
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.Contains(t, fault.HintOf(err), "zfs unmount dst/a")
	require.Equal(t, "yes", w.Memory.Get("dst/a", "mounted"))

	req.Send.Plan.Rollback = true
	r, err := run()
	require.NoError(t, err)
	d := r.Plan.Datasets[0]
	require.Equal(t, []string{"dst/a"}, d.Restore.Unmount)
	require.True(t, d.Steps[0].Receive.Rollback, "data written until the unmount is also lost")
	require.Empty(t, d.Restore.Revert, "an existing dataset keeps its properties")
	require.Equal(t, "no", w.Memory.Get("dst/a", "mounted"))
	require.Empty(t, w.Memory.Get("dst/a", zfs.RestoreProperty))

	w.Memory.Write("dst/a", []byte("newer"))
	req.Send.Plan.Rollback = false
	r, err = run()
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorContains(t, err, "dst/a has @y, and newer data: 5 bytes written since")
	require.Contains(t, fault.HintOf(err), "to roll dst/a back to @y")
	require.Equal(t, plan.Diverged, r.Plan.Conflicts[0].ID)
}

// rollbackWorld returns a world whose original dst/a has the copy's snapshot @x and newer data:
// @y, held by a job, the job's bookmarks, and unsaved writes.
func rollbackWorld(t *testing.T) *jobtest.World {
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
	w.Memory.Copy("src/a", "dst/a", "x")
	w.Memory.Write("dst/a", []byte("good"))
	require.NoError(t, w.Memory.Snapshot(t.Context(), []string{"dst/a@y"}))
	require.NoError(t, w.Memory.Hold(t.Context(), "zxfer:home:near", []string{"dst/a@y"}))
	require.NoError(t, w.Memory.Bookmark(t.Context(), map[string]string{"dst/a#zxfer:home:x": "dst/a@x", "dst/a#zxfer:home:y": "dst/a@y"}))
	w.Memory.Write("dst/a", []byte("newer"))
	for property, value := range map[string]string{"mounted": "yes", "canmount": "on", "mountpoint": "/dst/a"} {
		w.Memory.Set("dst/a", property, value)
	}
	return w
}

func restoreRequest(change func(*send.Request)) Request {
	return Request{Send: sendRequest(func(s *send.Request) {
		s.Target.Name, s.Plan.Target, s.Plan.Recursive, s.Plan.Rollback = "dst/a", "dst/a", false, true
		if change != nil {
			change(s)
		}
	})}
}

// versionsOf lists the snapshots and bookmarks of a dataset.
func versionsOf(w *jobtest.World, name string) (out []string) {
	for _, v := range w.Memory.Versions(name) {
		out = append(out, v.Short())
	}
	return out
}

// holdsOf lists the holds on a dataset's snapshots, "TAG SNAPSHOT".
func holdsOf(t *testing.T, w *jobtest.World, name string) (out []string) {
	var names []string
	for _, v := range w.Memory.Versions(name) {
		if v.Kind == zfs.Snapshot {
			names = append(names, v.In(name))
		}
	}
	tags, err := w.Memory.Holds(t.Context(), names)
	require.NoError(t, err)
	for _, n := range names {
		for _, tag := range tags[n] {
			out = append(out, tag+" "+n)
		}
	}
	return out
}

// TestRollbackOfOriginalWithSnapshot restores over an original that has the copy's snapshot
// and newer ones, held by a job. After any interruption, the same command completes it.
func TestRollbackOfOriginalWithSnapshot(t *testing.T) {
	t.Parallel()
	for fails, failed := 1, true; failed; fails++ {
		failed = false
		w := rollbackWorld(t)
		n := 0
		var one sync.Mutex
		w.Before = func(op string) error {
			one.Lock()
			defer one.Unlock()
			verb, _, _ := strings.Cut(op, " ")
			if slices.Contains([]string{zfs.OpUnmount, zfs.OpHold, zfs.OpRelease, zfs.OpRollback}, verb) {
				n++
			}
			if failed = failed || n == fails; n == fails {
				return errors.New("broken")
			}
			return nil
		}
		r, err := Run(t.Context(), restoreRequest(nil), hosts.New(w), send.Quiet{})
		if failed {
			require.Error(t, err)
			require.Contains(t, versionsOf(w, "dst/a"), "@x")
			w.Before = nil
			r, err = Run(t.Context(), restoreRequest(nil), hosts.New(w), send.Quiet{})
		}
		require.NoError(t, err, "failed at %d", fails)
		require.Equal(t, outcome.Done, r.Outcome)
		require.Equal(t, []string{"#zxfer:home:x", "@x"}, versionsOf(w, "dst/a"), "failed at %d", fails)
		require.Equal(t, []string{"zxfer:home:near dst/a@x"}, holdsOf(t, w, "dst/a"), "failed at %d", fails)
		require.Equal(t, "0", w.Memory.Get("dst/a", "written"))
		require.Equal(t, w.Memory.Get("dst/a", "mounted") != "yes", slices.Contains(r.Next, "zxfer restore --mount dst/a"), "failed at %d", fails)
		require.Empty(t, r.Diverged)
		r, err = Run(t.Context(), restoreRequest(nil), hosts.New(w), send.Quiet{})
		require.NoError(t, err)
		require.Equal(t, outcome.UpToDate, r.Outcome)
		require.Less(t, fails, 10)
	}
}

// TestRollbackListsLoss expects the plan to list the whole loss.
func TestRollbackListsLoss(t *testing.T) {
	t.Parallel()
	w := rollbackWorld(t)
	before := versionsOf(w, "dst/a")
	r, err := Run(t.Context(), restoreRequest(func(s *send.Request) { s.DryRun = true }), hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Equal(t, outcome.Planned, r.Outcome)
	d := r.Plan.Datasets[0]
	require.Equal(t, []string{"dst/a@y", "dst/a#zxfer:home:y", "the 5 bytes written to dst/a since @y", "data written to dst/a until it is unmounted"}, d.Loses)
	require.Equal(t, []plan.MovedHold{{Tag: "zxfer:home:near", To: "dst/a@x", From: []string{"dst/a@y"}}}, d.MovedHolds)
	require.Equal(t, []string{"zfs hold zxfer:home:near dst/a@x", "zfs release zxfer:home:near dst/a@y", "zfs rollback -r dst/a@x"}, r.Commands)
	require.Equal(t, before, versionsOf(w, "dst/a"))
	require.Equal(t, []string{"zxfer:home:near dst/a@y"}, holdsOf(t, w, "dst/a"))
}

// TestRollbackKeepsForeignSnapshots expects a refusal to destroy snapshots that others hold or that
// have clones, and snapshots and bookmarks that were made after the plan.
func TestRollbackKeepsForeignSnapshots(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]struct {
		change func(*jobtest.World)
		says   string
	}{
		"foreign hold": {func(w *jobtest.World) { require.NoError(t, w.Memory.Hold(t.Context(), "mine", []string{"dst/a@y"})) }, "zfs release mine dst/a@y"},
		"tag without a job": {func(w *jobtest.World) {
			require.NoError(t, w.Memory.Hold(t.Context(), "zxfer:mine", []string{"dst/a@y"}))
		}, "zfs release zxfer:mine dst/a@y"},
		"clone":         {func(w *jobtest.World) { w.Memory.Clone("dst/a@y", "dst/clone") }, "zfs destroy dst/clone"},
		"foreign clone": {func(w *jobtest.World) { w.Memory.Clone("dst/a@y", "dst/c") }, "zfs destroy dst/c"},
	} {
		w := rollbackWorld(t)
		at.change(w)
		versions, holds := versionsOf(w, "dst/a"), holdsOf(t, w, "dst/a")
		r, err := Run(t.Context(), restoreRequest(nil), hosts.New(w), send.Quiet{})
		require.Equal(t, fault.Refused, fault.ClassOf(err), name)
		require.Contains(t, fault.HintOf(err), at.says, name)
		require.Equal(t, plan.Kept, r.Plan.Conflicts[0].ID)
		require.Equal(t, versions, versionsOf(w, "dst/a"), name)
		require.Equal(t, holds, holdsOf(t, w, "dst/a"), name)
		require.Equal(t, "yes", w.Memory.Get("dst/a", "mounted"), name)
	}
	for _, made := range []string{"@later", "#later"} {
		w := rollbackWorld(t)
		rep := &plannedReporter{then: sync.OnceFunc(func() {
			if made[0] == '@' {
				require.NoError(t, w.Memory.Snapshot(t.Context(), []string{"dst/a" + made}))
				return
			}
			require.NoError(t, w.Memory.Bookmark(t.Context(), map[string]string{"dst/a" + made: "dst/a@y"}))
		})}
		_, err := Run(t.Context(), restoreRequest(nil), hosts.New(w), rep)
		require.ErrorContains(t, err, "dst/a"+made+" was created after the plan was made")
		require.Equal(t, fault.Failed, fault.ClassOf(err))
		require.Contains(t, versionsOf(w, "dst/a"), made)
		require.Equal(t, []string{"zxfer:home:near dst/a@y"}, holdsOf(t, w, "dst/a"), "no hold moved")
		require.Contains(t, versionsOf(w, "dst/a"), "@y")
		require.Equal(t, "yes", w.Memory.Get("dst/a", "mounted"))
		_, err = Run(t.Context(), restoreRequest(nil), hosts.New(w), send.Quiet{})
		require.NoError(t, err)
		require.Equal(t, []string{"#zxfer:home:x", "@x"}, versionsOf(w, "dst/a"))
	}
}

// TestRollbackToOlderSnapshot restores an older snapshot of a copy. The copy keeps its newer ones,
// and the printed command makes it follow again, although a job holds them.
func TestRollbackToOlderSnapshot(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x", "y"}, "dst": nil})
	w.Memory.Copy("src/a", "dst/a", "x", "y")
	for _, name := range []string{"src/a@y", "dst/a@y"} {
		require.NoError(t, w.Memory.Hold(t.Context(), "zxfer:home:near", []string{name}))
	}
	r, err := Run(t.Context(), restoreRequest(func(s *send.Request) { s.Source.Name, s.Plan.Snapshot = "src/a@x", "x" }), hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Contains(t, strings.Join(r.Plan.Notes, "\n"), "local:src/a has snapshots newer than @x: @y")
	require.Equal(t, []string{"@x"}, versionsOf(w, "dst/a"))
	require.Equal(t, []string{"@x", "@y"}, versionsOf(w, "src/a"))
	require.Equal(t, "zxfer send --rollback --snapshot= dst/a src/a", r.Diverged)

	require.NoError(t, w.Memory.Snapshot(t.Context(), []string{"dst/a@z"}))
	again := sendRequest(func(s *send.Request) {
		s.Source.Name, s.Plan.Source, s.Target.Name, s.Plan.Target, s.Plan.Recursive, s.Plan.Rollback = "dst/a", "dst/a", "src/a", "src/a", false, true
	})
	r, err = send.Run(t.Context(), again, hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Equal(t, []string{"src/a@y"}, r.Plan.Datasets[0].Loses[:1])
	require.Equal(t, plan.Incremental, r.Results[0].Kind)
	require.Equal(t, []string{"@x", "@z"}, versionsOf(w, "src/a"))
	require.Equal(t, []string{"zxfer:home:near src/a@x"}, holdsOf(t, w, "src/a"))
}

// TestRestoreWithStreamMovesHolds sends a newer snapshot to an original whose newer snapshot a
// job holds.
func TestRestoreWithStreamMovesHolds(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x", "z"}, "dst": nil})
	w.Memory.Copy("src/a", "dst/a", "x")
	require.NoError(t, w.Memory.Snapshot(t.Context(), []string{"dst/a@y"}))
	require.NoError(t, w.Memory.Hold(t.Context(), "zxfer:home:far", []string{"dst/a@y"}))
	r, err := Run(t.Context(), restoreRequest(nil), hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Equal(t, outcome.Done, r.Outcome)
	require.Equal(t, []string{"@x", "@z"}, versionsOf(w, "dst/a"))
	require.Equal(t, []string{"zxfer:home:far dst/a@x"}, holdsOf(t, w, "dst/a"))
}

// TestRollbackTree rolls back each dataset with newer data and sends missing snapshots to the
// others.
func TestRollbackTree(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x"}, "src/a/c": {"x"}, "src/a/d": {"x"}, "dst": nil})
	for _, d := range []string{"a", "a/b", "a/d"} {
		w.Memory.Copy("src/"+d, "dst/"+d, "x")
	}
	require.NoError(t, w.Memory.Snapshot(t.Context(), []string{"dst/a@y", "dst/a/b@y"}))
	w.Memory.Write("dst/a/b", []byte("newer"))
	r, err := Run(t.Context(), restoreRequest(func(s *send.Request) { s.Plan.Recursive = true }), hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Equal(t, outcome.Done, r.Outcome)
	for _, d := range []string{"a", "a/b", "a/c", "a/d"} {
		require.Equal(t, []string{"@x"}, versionsOf(w, "dst/"+d))
	}
	require.Len(t, r.Results, 1, "only missing snapshots are sent")
}

// TestRollbackKeepsUnlistedSnapshot expects that a target snapshot taken after the plan is not
// destroyed, because the plan did not list it.
func TestRollbackKeepsUnlistedSnapshot(t *testing.T) {
	t.Parallel()
	take := func(w *jobtest.World, name string) {
		require.NoError(t, w.Memory.Snapshot(t.Context(), []string{name}))
	}
	for name, change := range map[string]func(*jobtest.World){
		"mounted target":        func(w *jobtest.World) { w.Memory.Set("dst/a", "mounted", "yes") },
		"newer target snapshot": func(w *jobtest.World) { take(w, "dst/a@lost") },
	} {
		for _, restore := range []bool{false, true} {
			w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x", "y"}, "dst": nil})
			w.Memory.Copy("src/a", "dst/a", "x")
			req := sendRequest(func(s *send.Request) {
				s.Target.Name, s.Plan.Target, s.Plan.Recursive, s.Plan.Rollback = "dst/a", "dst/a", false, true
			})
			change(w)
			rep := &plannedReporter{then: sync.OnceFunc(func() { take(w, "dst/a@auto") })}
			has := func(name string) bool {
				return slices.ContainsFunc(w.Memory.Versions("dst/a"), func(v zfs.Version) bool { return v.Name == name })
			}
			run := func() (r *send.Report, err error) {
				if restore {
					return Run(t.Context(), Request{Send: req}, hosts.New(w), rep)
				}
				return send.Run(t.Context(), req, hosts.New(w), rep)
			}
			r, err := run()
			require.ErrorContains(t, err, "dst/a@auto was taken after the plan was made", name)
			require.NotEqual(t, outcome.Done, r.Outcome)
			require.True(t, has("auto"), name)
			r, err = run()
			require.NoError(t, err, name)
			require.Contains(t, r.Plan.Datasets[0].Loses, "dst/a@auto")
			require.False(t, has("auto"), name)
		}
	}
}

// plannedReporter calls a function when the plan is ready.
type plannedReporter struct {
	send.Quiet
	then func()
}

func (p *plannedReporter) Planned(*send.Report) { p.then() }

// timelessHost reports a false creation time for a snapshot, or none.
type timelessHost struct {
	*jobtest.World
	snapshot, says string
}

func (c timelessHost) Open(context.Context, hosts.Address) (hosts.Host, error) { return c, nil }

func (c timelessHost) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, c.World, r, hoststest.With(hosts.OpProperties, c.properties))
}

func (c timelessHost) properties(ctx context.Context, q hosts.PropertyQuery) (hosts.PropertiesByName, error) {
	found, err := hosts.Call(ctx, c.World, hosts.OpProperties, q)
	if of := found[c.snapshot]; of["creation"].Value != "" {
		of["creation"] = zfs.Property{Value: c.says}
		if c.says == "" {
			delete(found, c.snapshot)
		}
	}
	return found, err
}

func TestRestoreAsOf(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x", "skip", "y"}, "src/a/b": {"y"}, "dst": nil})
	when := func(name string) time.Time {
		found, err := hosts.Call(t.Context(), w, hosts.OpProperties, hosts.PropertyQuery{Names: []string{name}, Properties: []string{"creation"}})
		require.NoError(t, err)
		seconds, err := strconv.ParseInt(found[name]["creation"].Value, 10, 64)
		require.NoError(t, err)
		return time.Unix(seconds, 0)
	}
	run := func(at hosts.Opener, then time.Time) (*send.Report, error) {
		req := Request{At: then, Send: sendRequest(func(s *send.Request) { s.Plan.ExcludeSnapshots, s.DryRun = []string{"skip"}, true })}
		return Run(t.Context(), req, hosts.New(at), send.Quiet{})
	}
	then := when("src/a@skip")
	r, err := run(w, then)
	require.NoError(t, err)
	notes := strings.Join(r.Plan.Notes, "\n")
	require.Contains(t, notes, "the most recent is src/a@x, of")
	require.Contains(t, notes, "the next one is src/a@y, of")
	require.Contains(t, notes, "there is no earlier snapshot of src/a/b")
	require.Equal(t, "x", r.Plan.Datasets[0].Final.Name)

	_, err = run(timelessHost{w, "src/a@y", "soon"}, then)
	require.ErrorContains(t, err, `src/a@y has the invalid time`)
	r, err = run(timelessHost{w, "src/a@x", ""}, when("src/a@y"))
	require.NoError(t, err)
	require.Equal(t, "y", r.Plan.Datasets[0].Final.Name)
	_, err = run(timelessHost{w, "src/a@x", ""}, then)
	require.ErrorContains(t, err, "src/a has no snapshot taken", "a deleted snapshot is not the most recent")
}

// TestRestoreSkipsHealSnapshots expects that a heal snapshot is never restored.
func TestRestoreSkipsHealSnapshots(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x", zfs.HealPrefix + "y"}, "dst": nil})
	_, err := Run(t.Context(), Request{Send: sendRequest(nil)}, hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	l, err := hosts.Call(t.Context(), w, hosts.OpList, hosts.ListQuery{Dataset: "dst", Recursive: true, Versions: true})
	require.NoError(t, err)
	var names []string
	for _, d := range l.Datasets {
		for _, v := range d.Snapshots() {
			names = append(names, v.Name)
		}
	}
	require.Equal(t, []string{"x"}, names)
}

// busyHost is a host whose volumes are in use.
type busyHost struct {
	*jobtest.World
	by    map[string]string
	asked [][]string
}

func (o *busyHost) Open(context.Context, hosts.Address) (hosts.Host, error) { return o, nil }

func (o *busyHost) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, o.World, r, hoststest.With(hosts.OpInUse, o.inUse))
}

func (o *busyHost) inUse(_ context.Context, paths []string) (map[string]string, error) {
	o.asked = append(o.asked, paths)
	return o.by, nil
}

// TestRestoreOverVolumesInUse expects that volumes in use are not changed, and that the host is
// queried once.
func TestRestoreOverVolumesInUse(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x", "y"}, "src/a/b c": {"x", "y"}, "dst": nil})
	w.Memory.Copy("src/a", "dst/a", "x")
	w.Memory.Copy("src/a/b c", "dst/a/b c", "x")
	w.Memory.Edit(func(all map[string]*zfs.Dataset) {
		for name, d := range all {
			if strings.Contains(name, "/") {
				d.Type = zfs.Volume
			}
		}
	})
	o := &busyHost{World: w, by: map[string]string{"/dev/zvol/dst/a/b+c": `is in use by "qemu" (process 7)`}}
	req := Request{Send: sendRequest(func(s *send.Request) { s.Target.Name, s.Plan.Target, s.DryRun = "dst/a", "dst/a", true })}
	r, err := Run(t.Context(), req, hosts.New(o), send.Quiet{})
	require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
	require.Equal(t, [][]string{{"/dev/zvol/dst/a", "/dev/zvol/dst/a/b+c"}}, o.asked)
	require.Len(t, r.Plan.Conflicts, 1)
	require.Equal(t, `local: /dev/zvol/dst/a/b+c is in use by "qemu" (process 7), and would change during use`, r.Plan.Conflicts[0].Summary)
}

// TestRestoreDetectsRecentWrites rolls back data written a moment ago, which "written" does not
// count yet. If the host may not sync its pool, the restore uses it without a sync.
func TestRestoreDetectsRecentWrites(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})
	w.Memory.Copy("src/a", "dst/a", "x")
	w.Memory.WriteLate("dst/a", []byte("newer"))
	run := func() *send.Report {
		r, err := Run(t.Context(), restoreRequest(func(s *send.Request) { s.DryRun = true }), hosts.New(w), send.Quiet{})
		require.NoError(t, err)
		return r
	}
	w.Before = jobtest.FailOn(zfs.OpSync, fault.Refusef("", "not for this key"))
	require.Equal(t, outcome.UpToDate, run().Outcome)
	w.Before = nil
	require.Equal(t, outcome.Planned, run().Outcome)
}
