package heal

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/zfs"
)

// healJobA returns a request to heal the job "a" of healSrc.
func healJobA(change func(*Request)) Request {
	return healSrc(func(h *Request) {
		h.At, h.Job = endpoint.Endpoint{}, "a"
		if change != nil {
			change(h)
		}
	})
}

func shown(r *Report) (all []string) {
	for _, t := range r.Objects {
		all = append(all, t.Shown+" "+t.Outcome)
	}
	return all
}

// TestHealJob damages the source and the copy of a job, and another job's source. It expects that
// both sides of the job are healed from each other, and that nothing else is.
func TestHealJob(t *testing.T) {
	t.Parallel()
	w := damagedWorld(t, file("src/a", "", "/f"), file("dst/a", "", "/x"), file("src/b", "", "/g"))
	r, err := RunJob(t.Context(), healJobA(func(h *Request) { h.DryRun = true }), hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Equal(t, outcome.Planned, r.Outcome)
	require.Empty(t, w.Changes)
	require.Len(t, r.Heals, 2)
	require.Equal(t, []string{"src/a", "dst/a"}, []string{r.Heals[0].At, r.Heals[1].At})
	require.Equal(t, "dst/a", r.Heals[0].Datasets[0].Copy)
	require.Equal(t, "src/a", r.Heals[1].Datasets[0].Copy)

	var locked []string
	r, err = RunJob(t.Context(), healJobA(func(h *Request) {
		h.Lock = func(_ context.Context, job string) (func(), error) {
			locked = append(locked, job)
			return func() {}, nil
		}
	}), hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Equal(t, outcome.Done, r.Outcome)
	require.Equal(t, []string{"src/a:/f " + Healed}, shown(r.Heals[0]))
	require.Equal(t, []string{"dst/a:/x " + Healed}, shown(r.Heals[1]))
	require.Equal(t, []string{"a"}, slices.Compact(locked))
	assertSnapshots(t, w)
	require.Equal(t, []zfs.DamagedObject{file("src/b", "", "/g")}, w.Memory.Damaged.Objects)

	w.Memory.Damaged.Scan = zfs.Scan{}
	r, err = RunJob(t.Context(), healJobA(nil), hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Equal(t, outcome.UpToDate, r.Outcome)
}

// TestHealJobRestrictsCopies expects that only copies of the job are used, that all jobs of the
// datasets are locked, and that datasets outside of the job are left out.
func TestHealJobRestrictsCopies(t *testing.T) {
	t.Parallel()
	w := damagedWorld(t, file("src/a", "", "/f"), file("src/a/below", "", "/g"))
	w.Memory.Damaged.Scan = zfs.Scan{}
	w.Memory.Create("src/a/below", nil)
	w.Memory.Set("dst/a", "readonly", "off") // the job's own copy cannot heal, the other job's can
	w.Memory.Copy("src/a", "dst/other", "1", "2")
	w.Memory.Set("dst/other", "readonly", "on")
	other := Copy{Source: endpoint.Endpoint{Name: "src/a"}, Target: endpoint.Endpoint{Name: "dst/other"}, Job: "other"}
	var locked []string
	r, err := RunJob(t.Context(), healJobA(func(h *Request) {
		h.Copies = append(h.Copies, other)
		h.Lock = func(_ context.Context, job string) (func(), error) {
			locked = append(locked, job)
			return func() {}, nil
		}
	}), hosts.New(w), send.Quiet{})
	require.Equal(t, fault.Refused, fault.ClassOf(err), "nothing was changed")
	require.Len(t, r.Heals[0].Datasets, 1)
	require.Contains(t, r.Heals[0].Datasets[0].Why, "dst/a is not read-only")
	require.Equal(t, []string{"a", "other"}, locked)
	assertSnapshots(t, w)
}

// TestHealJobClass expects the error of the worst side, and no refusal if a side was healed.
func TestHealJobClass(t *testing.T) {
	t.Parallel()
	w := damagedWorld(t, file("src/a", "", "/f"), file("dst/a", "", "/x"))
	w.Memory.Set("dst/a", "origin", "dst/b@1")
	w.Memory.Damaged.Scan = zfs.Scan{}
	r, err := RunJob(t.Context(), healJobA(nil), hosts.New(w), send.Quiet{})
	require.ErrorContains(t, err, "dst/a: none of the damage can be healed")
	require.Equal(t, outcome.Refused, r.Heals[1].Outcome)
	require.Equal(t, outcome.Done, r.Heals[0].Outcome)
	require.Equal(t, fault.Failed, fault.ClassOf(err))
	require.Equal(t, outcome.Failed, r.Outcome)

	r, err = RunJob(t.Context(), healJobA(nil), hosts.New(w), send.Quiet{})
	require.Equal(t, outcome.UpToDate, r.Heals[0].Outcome)
	require.Equal(t, fault.Refused, fault.ClassOf(err), "this time nothing was changed")
}

// TestRepairOf expects the decision of a heal, without any change, stream or lock.
func TestRepairOf(t *testing.T) {
	t.Parallel()
	metadata := zfs.DamagedObject{Shown: "<metadata>:<0x1>"}
	broken := errors.New("no route to host")
	for name, tt := range map[string]struct {
		damaged []zfs.DamagedObject
		change  func(w *jobtest.World, d *zfs.Damage)
		want    Repair
	}{
		"a copy has the data":  {damaged: []zfs.DamagedObject{file("src/a", "", "/f")}, want: Repair{State: RepairFull, Copies: []string{"dst/a"}}},
		"metadata":             {damaged: []zfs.DamagedObject{metadata}, want: Repair{State: RepairNone, Why: "metadata, or of a destroyed dataset: no copy has its blocks"}},
		"data and metadata":    {damaged: []zfs.DamagedObject{file("src/a", "", "/f"), metadata}, want: Repair{State: RepairPartial, Copies: []string{"dst/a"}, Why: "metadata, or of a destroyed dataset: no copy has its blocks"}},
		"of the pool":          {change: func(_ *jobtest.World, d *zfs.Damage) { d.PoolErrors = 2 }, want: Repair{State: RepairNone, Why: "the pool has 2 errors in its metadata or in destroyed data"}},
		"heal snapshots alone": {damaged: []zfs.DamagedObject{file("src/a", zfs.HealPrefix+"1", "/f")}, want: Repair{State: RepairNone}},
		"key not loaded": {change: func(_ *jobtest.World, d *zfs.Damage) { d.Unlisted, d.Reason = true, zfs.KeyNotLoaded },
			want: Repair{State: RepairUnknown, Why: "ZFS does not list the errors: the key of a damaged dataset is not loaded"}},
		"a destroyed dataset": {change: func(_ *jobtest.World, d *zfs.Damage) { d.Unlisted, d.Reason = true, zfs.DatasetDestroyed },
			want: Repair{State: RepairUnknown, Why: "ZFS does not list the errors: some belong to a destroyed dataset, until the next scrub"}},
		"too many": {damaged: []zfs.DamagedObject{file("src/a", "", "/f")}, change: func(_ *jobtest.World, d *zfs.Damage) { d.More = 7 },
			want: Repair{State: RepairPartial, Copies: []string{"dst/a"}, Why: "the list of errors is too long"}},
		"a clone": {damaged: []zfs.DamagedObject{file("src/a", "", "/f")}, change: func(w *jobtest.World, _ *zfs.Damage) { w.Memory.Set("src/a", "origin", "src/b@1") },
			want: Repair{State: RepairNone, Why: "src/a is a clone: OpenZFS crashes if blocks of a clone are healed"}},
		"no common snapshot": {damaged: []zfs.DamagedObject{file("src/a", "", "/f")}, change: func(w *jobtest.World, _ *zfs.Damage) {
			for _, s := range []string{"@1", "@2"} {
				require.NoError(t, w.Memory.Destroy(t.Context(), []string{"dst/a" + s}))
			}
		}, want: Repair{State: RepairNone, Why: "src/a and dst/a have no snapshot in common"}},
		"no copy": {damaged: []zfs.DamagedObject{file("src/a", "", "/f")}, change: func(w *jobtest.World, _ *zfs.Damage) {
			w.Memory.Edit(func(all map[string]*zfs.Dataset) { delete(all, "dst/a") })
		}, want: Repair{State: RepairNone, Why: "dst/a does not exist"}},
		"the copy is damaged": {damaged: []zfs.DamagedObject{file("src/a", "", "/f")}, change: func(w *jobtest.World, _ *zfs.Damage) {
			w.Memory.Damaged.Objects = []zfs.DamagedObject{file("dst/a", "", "/g")}
		}, want: Repair{State: RepairUnknown, Why: "dst/a: it is damaged, 1 error: its stream ends at the first unreadable block"}},
		"the copy is unreachable": {damaged: []zfs.DamagedObject{file("src/a", "", "/f")}, change: func(w *jobtest.World, _ *zfs.Damage) {
			w.Before = func(op string) error {
				if op == "list dst/a" {
					return broken
				}
				return nil
			}
		}, want: Repair{State: RepairUnknown, Why: broken.Error()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := damagedWorld(t)
			d := zfs.Damage{Objects: tt.damaged}
			if tt.change != nil {
				tt.change(w, &d)
			}
			w.Changes = nil
			req := healJobA(func(h *Request) {
				h.At = endpoint.Endpoint{Name: "src/a"}
				h.Lock = func(context.Context, string) (func(), error) { return nil, errors.New("locked") }
			})
			got := RepairOf(t.Context(), req, hosts.New(w), d, func(_ context.Context, e endpoint.Endpoint) (zfs.Damage, error) {
				return w.Memory.Damaged.Within(e.Name), nil
			})
			require.Equal(t, tt.want, got)
			require.Empty(t, w.Changes)
		})
	}
}

// TestRepairOfManyDatasets expects a limit, and that an expired time is not a repair.
func TestRepairOfManyDatasets(t *testing.T) {
	t.Parallel()
	w := damagedWorld(t, file("src/a", "", "/f"))
	d := zfs.Damage{Objects: []zfs.DamagedObject{file("src/a", "", "/f")}}
	for i := range maxRepairDatasets {
		d.Objects = append(d.Objects, file("src/a/"+string(rune('a'+i)), "", "/f"))
	}
	req := healJobA(func(h *Request) { h.At = endpoint.Endpoint{Name: "src/a"}; h.Copies[0].Recursive = true })
	none := func(context.Context, endpoint.Endpoint) (zfs.Damage, error) { return zfs.Damage{}, nil }
	r := RepairOf(t.Context(), req, hosts.New(w), d, none)
	require.Equal(t, RepairPartial, r.State)
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	require.Equal(t, RepairUnknown, RepairOf(ctx, req, hosts.New(w), d, none).State)
}

// TestHealJobHealsSourceAgain damages both sides. While the copy is damaged, its stream ends early.
// It expects that the source is healed after the copy, and that the report has the final result.
func TestHealJobHealsSourceAgain(t *testing.T) {
	t.Parallel()
	w := damagedWorld(t, file("src/a", "", "/f"), file("dst/a", "", "/x"))
	w.Before = func(op string) error {
		damaged := slices.ContainsFunc(w.Memory.Damaged.Objects, func(o zfs.DamagedObject) bool { return o.Dataset == "dst/a" })
		if damaged && strings.HasPrefix(op, "send dst/a") {
			return &zfs.Error{Op: zfs.OpSend, Kind: zfs.PoolFault, Subject: "dst/a", Detail: "Input/output error"}
		}
		return nil
	}
	r, err := RunJob(t.Context(), healJobA(nil), hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Equal(t, outcome.Done, r.Outcome)
	require.Len(t, r.Heals, 2)
	require.Equal(t, []string{"src/a:/f " + Healed}, shown(r.Heals[0]))
	require.Equal(t, []string{"dst/a:/x " + Healed}, shown(r.Heals[1]))
	require.Empty(t, w.Memory.Damaged.Objects)
	assertSnapshots(t, w)
}

// TestHealJobKeepsFirstResults expects that a second heal of a side does not hide the objects that
// the first one healed.
func TestHealJobKeepsFirstResults(t *testing.T) {
	t.Parallel()
	r := &Report{Objects: []*Object{{DamagedObject: file("src/a", "", "/f"), Outcome: NotHealed}}}
	r.addHealed(&Report{Datasets: []*Dataset{{Dataset: "src/a"}, {Dataset: "src/b"}}, Objects: []*Object{
		{DamagedObject: file("src/a", "", "/f"), Outcome: Healed}, {DamagedObject: file("src/b", "", "/g"), Outcome: Healed}, {DamagedObject: file("src/c", "", "/h"), Outcome: NotHealed}}})
	require.Equal(t, []string{"src/a:/f " + NotHealed, "src/b:/g " + Healed}, shown(r))
	require.Len(t, r.Datasets, 1)
}

// TestHealJobInterrupted interrupts a heal after its first side, and expects that the command does
// not succeed.
func TestHealJobInterrupted(t *testing.T) {
	t.Parallel()
	w := damagedWorld(t, file("src/a", "", "/f"), file("dst/a", "", "/x"))
	ctx, cancel := context.WithCancel(t.Context())
	w.Memory.Heals = func(zfs.DamagedObject, uint64) bool { return true }
	w.Before = func(op string) error {
		if op == "destroy src/a@"+zfs.HealPrefix+"now" {
			cancel()
		}
		return nil
	}
	r, err := RunJob(ctx, healJobA(nil), hosts.New(w), send.Quiet{})
	require.Equal(t, fault.Interrupted, fault.ClassOf(err))
	require.Equal(t, outcome.Interrupted, r.Outcome)
	require.Len(t, r.Heals, 1)
	cancel()
	r, err = RunJob(ctx, healJobA(nil), hosts.New(w), send.Quiet{})
	require.Equal(t, fault.Interrupted, fault.ClassOf(err))
	require.Empty(t, r.Heals)
	w.Before = nil
	_, err = RunJob(t.Context(), healJobA(nil), hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	assertSnapshots(t, w)
	require.Empty(t, w.Memory.Damaged.Objects)
}

// TestHealJobContinuesAfterFailure damages both sides, fails one operation after the other, and
// expects that the same command then succeeds and leaves nothing behind.
func TestHealJobContinuesAfterFailure(t *testing.T) {
	t.Parallel()
	for fails, failed := 1, true; failed; fails++ {
		failed = false
		w := damagedWorld(t, file("src/a", "", "/f"), file("dst/a", "", "/x"))
		op := ""
		failOnce(w, fails, func(o string) { failed, op = true, o })
		_, err := RunJob(t.Context(), healJobA(nil), hosts.New(w), send.Quiet{})
		w.Before = nil
		for range 2 { // a second retry succeeds
			if err != nil {
				_, err = RunJob(t.Context(), healJobA(nil), hosts.New(w), send.Quiet{})
			}
		}
		require.NoError(t, err, "failed at %d, %s", fails, op)
		require.Empty(t, w.Memory.Damaged.Objects, op)
		assertSnapshots(t, w, op)
		require.Less(t, fails, 300)
	}
}
