package heal

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// sent returns the transfer that made the copies.
func sent() send.Request {
	return send.Request{Source: endpoint.Endpoint{Name: "src/a"}, Target: endpoint.Endpoint{Name: "dst"}, Plan: plan.Request{Source: "src/a", Target: "dst", Recursive: true}}
}

// TestHealPairs expects that the job file decides which dataset is the source, otherwise
// the snapshots. A writable copy is never received into.
func TestHealPairs(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		source, target         []string // snapshots newer than the common ones
		known, bad, readonly   bool     // bad: the source is damaged; readonly: property of the target
		sourceReadonly, toward bool     // toward: the target is received into
		want                   string
	}{
		"a job's source":           {known: true, bad: true, readonly: true, toward: true},
		"a job's copy":             {known: true, readonly: true, toward: true},
		"a job's read-only source": {known: true, readonly: true, sourceReadonly: true, toward: true},
		"a job's live copy":        {known: true, bad: true, want: "is not read-only"},
		"a job's copy is ahead":    {target: []string{"x"}, known: true, bad: true, readonly: true, want: "newer than"},
		"as typed":                 {bad: true, readonly: true, toward: true},
		"both live":                {bad: true, want: "is not read-only"},
		"typed, the copy is ahead": {target: []string{"x"}, readonly: true, want: "is not read-only"},
		"typed, both are live":     {source: []string{"x"}, want: "is not read-only"},
		"diverged":                 {source: []string{"x"}, target: []string{"y"}, readonly: true, want: "diverged"},
		"typed in reverse":         {sourceReadonly: true, bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := jobtest.NewWorld(t, map[string][]string{"src/a": {"1"}, "dst": nil})
			_, err := send.Run(t.Context(), sent(), hosts.New(w), send.Quiet{})
			require.NoError(t, err)
			for dataset, more := range map[string][]string{"src/a": tt.source, "dst/a": tt.target} {
				for _, s := range more {
					require.NoError(t, w.Memory.Snapshot(t.Context(), []string{dataset + "@" + s}))
				}
			}
			w.Memory.Set("dst/a", "readonly", map[bool]string{true: "on", false: "off"}[tt.readonly])
			w.Memory.Set("src/a", "readonly", map[bool]string{true: "on", false: "off"}[tt.sourceReadonly])
			damaged, good := "dst/a", "src/a"
			if tt.bad {
				damaged, good = good, damaged
			}
			req := Request{At: endpoint.Endpoint{Name: damaged}, Copy: &endpoint.Endpoint{Name: good}}
			if tt.known { // a job's copy, although named explicitly
				req.Copies = []Copy{{Source: endpoint.Endpoint{Name: "src/a"}, Target: endpoint.Endpoint{Name: "dst/a"}, Job: "j"}}
			}
			h := newHealJob(req, hosts.New(w), send.Quiet{})
			out, err := h.copies.choose(t.Context(), damaged)
			if tt.want != "" {
				require.ErrorContains(t, err, tt.want)
				return
			}
			require.NoError(t, err)
			_, target := out.pair.ends()
			require.Equal(t, tt.toward, target.Name == "dst/a")
		})
	}
}

// TestScrubResult expects that an error list counts only after a completed scrub, and that
// unlisted errors are not success.
func TestScrubResult(t *testing.T) {
	t.Parallel()
	const clean = "scrub repaired 0B in 00:00:01 with 0 errors on Sun"
	for name, tt := range map[string]struct {
		at    string
		after zfs.Damage
		thing string
		want  string // part of the error
	}{
		"healed":                   {"src", zfs.Damage{Scan: zfs.Scan{Text: clean}}, Healed, ""},
		"cancelled":                {"src", zfs.Damage{Scan: zfs.Scan{Text: "scrub canceled on Sun"}}, Unknown, "what they healed"},
		"paused":                   {"src", zfs.Damage{Scan: zfs.Scan{Paused: true}}, Unknown, "the scrub is paused"},
		"unlisted":                 {"src", zfs.Damage{Scan: zfs.Scan{Text: clean, Errors: 2}}, Healed, "found 2 errors that ZFS does not list"},
		"unlisted, dataset":        {"src/a", zfs.Damage{Scan: zfs.Scan{Text: clean, Errors: 2}}, Healed, "does not list, in src/a or elsewhere"},
		"errors of other datasets": {"src/a", zfs.Damage{Scan: zfs.Scan{Text: clean, Errors: 2}, Objects: []zfs.DamagedObject{{Dataset: "src/b", Shown: "src/b:/x"}}}, Healed, ""},
		"of the pool":              {"src/a", zfs.Damage{Scan: zfs.Scan{Text: clean, Errors: 1}, Objects: []zfs.DamagedObject{{Object: "0x3d", Shown: "<metadata>:<0x3d>"}}}, Healed, "pool src has 1 error outside of datasets: in"},
		"in destroyed data":        {"src/a", zfs.Damage{Scan: zfs.Scan{Text: clean}, Objects: []zfs.DamagedObject{{Object: "0x2", Shown: "<0x44>:<0x2>"}}}, Healed, ""},
		"no list":                  {"src", zfs.Damage{Unlisted: true, Scan: zfs.Scan{Text: clean}}, Unknown, "does not list the remaining errors"},
		"it is still damaged":      {"src", zfs.Damage{Scan: zfs.Scan{Text: clean, Errors: 1}, Objects: []zfs.DamagedObject{{Dataset: "src/a", Shown: "src/a:/f"}}}, NotHealed, "not healed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pools := &damagedPools{Host: zfsmem.New("src/a"), damage: tt.after}
			local := hosts.On(pools, "test", func(string) {})
			t.Cleanup(func() { require.NoError(t, local.Close()) })
			at := hosts.New(&jobtest.World{Local: local})
			req := Request{At: endpoint.Endpoint{Name: tt.at}}
			h := &healJob{req: req, at: at, host: at.Get("", &req.Settings), rep: send.Quiet{}, report: &Report{
				Datasets: []*Dataset{{Dataset: "src/a", Healed: true}},
				Objects:  []*Object{{DamagedObject: zfs.DamagedObject{Dataset: "src/a", Shown: "src/a:/f"}, Outcome: Planned}},
			}}
			h.datasets = []*healing{{report: h.report.Datasets[0]}}
			err := h.scrubAndCompare(t.Context())
			require.Equal(t, tt.thing, h.report.Objects[0].Outcome)
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.want)
			require.Equal(t, fault.Failed, fault.ClassOf(err))
			require.Equal(t, name != "paused", pools.scrubbed, "a resumed scrub verifies nothing")
			h.report.Datasets[0].Healed, pools.scrubbed = false, false
			require.ErrorContains(t, h.scrubAndCompare(t.Context()), "nothing was healed")
			require.False(t, pools.scrubbed, "there is nothing to verify")
		})
	}
}

// damagedPools are pools with damage.
type damagedPools struct {
	*zfsmem.Host
	damage   zfs.Damage
	scrubbed bool
	reverted []string
}

func (p *damagedPools) Damage(context.Context, string) (zfs.Damage, error) { return p.damage, nil }
func (p *damagedPools) Scrub(context.Context, string) error                { p.scrubbed = true; return nil }
func (p *damagedPools) Revert(ctx context.Context, snapshot string) error {
	p.reverted = append(p.reverted, snapshot)
	dataset, _, _ := strings.Cut(snapshot, "@")
	return p.Destroy(ctx, []string{dataset + "@" + zfs.HealPrefix + "1"})
}

// TestSweepKeepsOtherSnapshots expects that heal snapshots are destroyed on both sides, and that snapshots
// that a run sent in between are kept.
func TestSweepKeepsOtherSnapshots(t *testing.T) {
	t.Parallel()
	for _, meanwhile := range []bool{false, true} {
		pools := &damagedPools{Host: zfsmem.New("src/a", "dst/a")}
		snaps := []string{"daily", zfs.HealPrefix + "1"}
		if meanwhile {
			snaps = append(snaps, "later")
		}
		for _, dataset := range []string{"src/a", "dst/a"} {
			for _, s := range snaps {
				require.NoError(t, pools.Snapshot(t.Context(), []string{dataset + "@" + s}))
			}
		}
		local := hosts.On(pools, "test", func(string) {})
		t.Cleanup(func() { require.NoError(t, local.Close()) })
		h := newHealJob(Request{}, hosts.New(&jobtest.World{Local: local}), send.Quiet{})
		p := &healPair{bad: endpoint.Endpoint{Name: "src/a"}, good: endpoint.Endpoint{Name: "dst/a"}, fromBad: true}
		require.NoError(t, h.destroyHealSnapshots(t.Context(), p))
		require.Equal(t, meanwhile, len(pools.reverted) == 0)
		for _, e := range []endpoint.Endpoint{p.bad, p.good} {
			d, err := h.copies.dataset(t.Context(), e, &p.Settings)
			require.NoError(t, err)
			require.Len(t, d.Snapshots(), len(snaps)-1)
		}
	}
}

// TestHealLocksJob expects that a job's run waits for the heal, or that the heal is
// refused. Otherwise, the run could use the heal snapshot as incremental source.
func TestHealLocksJob(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src/a": {"1"}, "dst": nil})
	_, err := send.Run(t.Context(), sent(), hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	w.Memory.Set("dst/a", "readonly", "on")
	held := 0
	req := Request{At: endpoint.Endpoint{Name: "src"}, Copy: &endpoint.Endpoint{Name: "dst"}, // although named explicitly
		Copies: []Copy{{Source: endpoint.Endpoint{Name: "src/a"}, Target: endpoint.Endpoint{Name: "dst/a"}, Job: "j"}}}
	req.Lock = func(_ context.Context, job string) (func(), error) {
		require.Equal(t, "j", job)
		held++
		return func() { held-- }, nil
	}
	h := newHealJob(req, hosts.New(w), send.Quiet{})
	for range 2 {
		_, err = h.copies.choose(t.Context(), "src/a")
		require.NoError(t, err)
	}
	require.Equal(t, 1, held)
	h.copies.unlock()
	require.Zero(t, held)
	h.req.Lock = func(context.Context, string) (func(), error) { return nil, fault.Refusef("", "it runs") }
	_, err = h.copies.choose(t.Context(), "src/a")
	require.ErrorContains(t, err, "it runs")
	h.req.DryRun = true
	_, err = h.copies.choose(t.Context(), "src/a")
	require.NoError(t, err)
}

// TestJobsOfHealedDatasets expects that a copy belongs to its job, regardless of the user name in its
// address. All jobs that use either dataset are locked.
func TestJobsOfHealedDatasets(t *testing.T) {
	t.Parallel()
	e := func(host, name string) endpoint.Endpoint { return endpoint.Endpoint{Host: host, Name: name} }
	typed := e("root@backup1", "vault/home/x")
	req := Request{At: e("", "tank/home/x"), Copy: &typed, Copies: []Copy{
		{Source: e("", "tank/home"), Target: e("backup1", "vault/home"), Recursive: true, Job: "j"},
		{Source: e("backup1", "vault"), Target: e("offsite", "all"), Recursive: true, Job: "on"},
		{Source: e("", "tank/home"), Target: e("backup2", "vault/home"), Job: "above"},
		{Source: e("", "tank/home/x"), Target: e("backup2", "vault/x"), Job: "other"},
	}}
	pairs := req.pairs("tank/home/x")
	require.Len(t, pairs, 1)
	require.Equal(t, "j", pairs[0].job)
	require.True(t, pairs[0].fromBad)
	require.Equal(t, typed, pairs[0].good)
	var held []string
	req.Lock = func(_ context.Context, job string) (func(), error) { held = append(held, job); return func() {}, nil }
	f := &copyFinder{req: &req, locks: map[string]func(){}}
	require.NoError(t, f.lock(t.Context(), pairs[0]))
	require.Equal(t, []string{"j", "on", "other"}, held)

	req.At, req.Copy = e("root@backup1", "vault/home/x"), nil
	pairs = req.pairs("vault/home/x")
	require.Len(t, pairs, 2)
	require.Equal(t, e("", "tank/home/x"), pairs[0].good)
	require.Equal(t, e("root@backup1", "vault/home/x"), pairs[0].bad)
}
