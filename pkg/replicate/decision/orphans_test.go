package decision

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/zfs"
)

// TestNoteOrphans expects that a copy is an orphan if its dataset existed on the source before and
// no longer exists, by name and GUID.
func TestNoteOrphans(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*RunState)
		want   []replicate.Orphan
	}{
		"destroyed":    {func(*RunState) {}, []replicate.Orphan{{Source: "tank/a", Dataset: "vault/t/a"}}},
		"still exists": {func(v *RunState) { v.Survey.All = parseListing("tank", "tank/a").Datasets }, nil},
		"renamed": {func(v *RunState) {
			v.Survey.State.Datasets["tank/a"].GUID, v.Survey.All = 1001, parseListing("tank", "tank/new").Datasets
		}, nil},
		"never received":   {func(v *RunState) { v.Survey.State.Datasets["tank/a"].Targets["near"].BaseGUID = 0 }, nil},
		"without a target": {func(v *RunState) { v.Survey.State.Datasets["tank/a"].Targets["near"].Target = "" }, nil},
		"permit": {func(v *RunState) {
			v.Survey.State.Datasets["tank2/a"], v.Survey.State.Datasets["tank/a"] = v.Survey.State.Datasets["tank/a"], &replicate.DatasetState{}
		}, nil},
		"not recursive":  {func(v *RunState) { v.Survey.Job.Recursive = false }, nil},
		"root recreated": {func(v *RunState) { v.Survey.State.Root = 7 }, []replicate.Orphan{{Source: "tank/a", Dataset: "vault/t/a", SourceReplaced: true}}},
		"root known":     {func(v *RunState) { v.Survey.State.Root = 1000 }, []replicate.Orphan{{Source: "tank/a", Dataset: "vault/t/a"}}},
		"root recreated since an older version": {func(v *RunState) { v.Survey.State.Datasets["tank"] = &replicate.DatasetState{GUID: 7} },
			[]replicate.Orphan{{Source: "tank/a", Dataset: "vault/t/a", SourceReplaced: true}}},
		"exists again": {func(v *RunState) {
			v.Survey.State.Orphans, v.Survey.All = []*replicate.Orphan{{Target: "near", Source: "tank/a", Dataset: "vault/t/a"}}, parseListing("tank", "tank/a").Datasets
		}, nil},
		"missed before": {func(v *RunState) {
			v.Survey.State.Orphans = []*replicate.Orphan{{Target: "near", Source: "tank/a", Dataset: "vault/t/a", Since: hour(1), Seen: hour(1)}}
		}, []replicate.Orphan{{Source: "tank/a", Dataset: "vault/t/a", Since: hour(1), Seen: hour(1)}}},
		"missed before, root recreated": {func(v *RunState) {
			v.Survey.State.Root, v.Survey.State.Orphans = 7, []*replicate.Orphan{{Target: "near", Source: "tank/a", Dataset: "vault/t/a", Since: hour(1), Seen: hour(1)}}
		}, []replicate.Orphan{{Source: "tank/a", Dataset: "vault/t/a", Since: hour(1), Seen: hour(1), SourceReplaced: true}}},
		"with a hold": {func(v *RunState) {
			v.Survey.State.Datasets["tank/a"].Targets["near"].Held = []replicate.Held{{Source: "tank/a@1"}, {Target: "vault/t/a@1"}}
		}, []replicate.Orphan{{Source: "tank/a", Dataset: "vault/t/a", Held: []string{"vault/t/a@1"}}}},
	} {
		v := newRunState(t, parseListing("tank"), near+"mirror = { gone = \"4d\" }\n")
		v.Survey.All = v.Survey.Source.Datasets
		v.Survey.State.Datasets["tank/a"] = &replicate.DatasetState{GUID: 5, Targets: map[string]*replicate.CopyState{"near": {Target: "vault/t/a", BaseGUID: 1}}}
		tt.change(v)
		v.Survey.NoteOrphans()
		var got []replicate.Orphan
		for _, g := range v.Survey.State.Orphans {
			require.Equal(t, "near", g.Target, name)
			got = append(got, *g)
		}
		for i := range tt.want {
			tt.want[i].Target = "near"
			if tt.want[i].Since.IsZero() {
				tt.want[i].Since, tt.want[i].Seen = v.Survey.Started, v.Survey.Started
			}
		}
		require.Equal(t, tt.want, got, name)
	}
}

// TestGracePeriod expects that the time between two runs counts up to a quarter of the grace
// period, and never backwards.
func TestGracePeriod(t *testing.T) {
	t.Parallel()
	const grace = 4 * 24 * time.Hour
	g := &replicate.Orphan{Seen: hour(0)}
	for _, tt := range []struct {
		now  time.Time
		want time.Duration
	}{{hour(5), 5 * time.Hour}, {hour(2), 5 * time.Hour}, {hour(3), 6 * time.Hour}, {hour(27), 30 * time.Hour}, {hour(1000), 54 * time.Hour}} {
		g.Wait(tt.now, grace)
		require.Equal(t, tt.want, g.Waited)
		require.Equal(t, tt.now, g.Seen)
	}
	mirror := &replicate.Target{Mirror: &replicate.Mirror{Gone: calendar.Grace(grace)}}
	require.Equal(t, hour(1000).Add(grace-54*time.Hour), g.Due(mirror))
	g.Waited = 2 * grace
	require.Equal(t, hour(1000), g.Due(mirror))
	require.Zero(t, g.Due(&replicate.Target{Mirror: &replicate.Mirror{}}), "datasets are not mirrored")
	g.SourceReplaced = true
	require.Zero(t, g.Due(mirror))
}

// TestUpdateOrphans expects that the grace period advances only while the same copy exists.
func TestUpdateOrphans(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		gone    replicate.Orphan
		there   uint64 // GUID of the copy
		kept    bool
		waited  time.Duration
		overdue bool // after the grace period
	}{
		"first look":      {replicate.Orphan{Source: "tank/a"}, 9, true, time.Hour, true},
		"the same":        {replicate.Orphan{Source: "tank/a", GUID: 9}, 9, true, time.Hour, true},
		"destroyed":       {replicate.Orphan{Source: "tank/a", GUID: 9}, 0, false, 0, false},
		"another dataset": {replicate.Orphan{Source: "tank/a", GUID: 9}, 8, false, 0, false},
		"root recreated":  {replicate.Orphan{Source: "tank/a", GUID: 9, SourceReplaced: true}, 9, true, time.Hour, false},
		"another root":    {replicate.Orphan{Source: "tank2/a", GUID: 9}, 9, true, 0, false},
	} {
		v := newRunState(t, parseListing("tank"), near+"mirror = { gone = \"4d\" }\n")
		target := &v.Survey.Job.Targets[0]
		tt.gone.Target, tt.gone.Dataset, tt.gone.Seen = "near", "vault/t/a", hour(98)
		other := &replicate.Orphan{Target: "far", Dataset: "vault/t/a"}
		v.Survey.State.Orphans = []*replicate.Orphan{&tt.gone, other}
		v.Survey.UpdateOrphans(target, func(string) uint64 { return tt.there })
		require.Equal(t, []*replicate.Orphan{other}, v.Survey.State.OrphansAt("far"), name)
		require.Equal(t, tt.kept, len(v.Survey.State.OrphansAt("near")) == 1, name)
		require.Equal(t, tt.waited, tt.gone.Waited, name)
		require.Empty(t, v.Survey.OverdueOrphans(target), name)
		tt.gone.Waited = 4*24*time.Hour - 1
		require.Empty(t, v.Survey.OverdueOrphans(target), name)
		tt.gone.Waited++
		require.Equal(t, tt.overdue, len(v.Survey.OverdueOrphans(target)) == 1, name)
		v.Survey.Job.Recursive = false
		require.Empty(t, v.Survey.OverdueOrphans(target), name)
		v.Survey.State.DropOrphan("near", "vault/t/a")
		require.Equal(t, []*replicate.Orphan{other}, v.Survey.State.Orphans, name)
	}
}

// TestDestroyOrphans expects that an orphan is destroyed with its descendants if only the job has
// used it.
func TestDestroyOrphans(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		there   []string
		change  func(v *RunState, there *zfs.Listing)
		remove  []string
		stays   map[string]string
		refused bool
	}{
		"overdue":              {there: []string{"vault/t/a@1 @2"}, remove: []string{"vault/t/a"}},
		"with children":        {there: []string{"vault/t/a@1", "vault/t/a/b@2"}, remove: []string{"vault/t/a/b", "vault/t/a"}},
		"a similar name":       {there: []string{"vault/t/a@1", "vault/t/ab@2"}, change: func(v *RunState, _ *zfs.Listing) { v.Survey.State.Orphans = v.Survey.State.Orphans[:1] }, remove: []string{"vault/t/a"}},
		"more than allowed":    {there: []string{"vault/t/a@1", "vault/t/b@1", "vault/t/c@1"}, remove: []string{"vault/t/c", "vault/t/b", "vault/t/a"}, refused: true},
		"without a limit":      {there: []string{"vault/t/a@1", "vault/t/b@1", "vault/t/c@1"}, change: func(v *RunState, _ *zfs.Listing) { v.NoLimit = true }, remove: []string{"vault/t/c", "vault/t/b", "vault/t/a"}},
		"another dataset":      {there: []string{"vault/t/a@1"}, change: func(v *RunState, _ *zfs.Listing) { v.Survey.State.Orphans[0].GUID = 8 }},
		"a child that is kept": {there: []string{"vault/t/a@1", "vault/t/a/b@2"}, change: func(v *RunState, _ *zfs.Listing) { v.Survey.State.Orphans = v.Survey.State.Orphans[:1] }, stays: map[string]string{"vault/t/a": "vault/t/a/b, a descendant, is kept"}},
		"written to": {there: []string{"vault/t/a@1"}, change: func(_ *RunState, l *zfs.Listing) { l.Datasets[0].Properties["written"] = zfs.Property{Value: "1"} },
			stays: map[string]string{"vault/t/a": "it was modified since its most recent snapshot"}},
		"written to, no snapshot": {there: []string{"vault/t/a"}, change: func(_ *RunState, l *zfs.Listing) { l.Datasets[0].Properties["written"] = zfs.Property{Value: "1"} }, remove: []string{"vault/t/a"}},
		"an interrupted receive": {there: []string{"vault/t/a@1"}, change: func(_ *RunState, l *zfs.Listing) {
			l.Datasets[0].Properties["receive_resume_token"] = zfs.Property{Value: "1-2"}
		}, stays: map[string]string{"vault/t/a": "a receive into it was interrupted"}},
		"an interrupted first receive": {there: []string{"vault/t/a"}, change: func(_ *RunState, l *zfs.Listing) {
			l.Datasets[0].Properties["inconsistent"] = zfs.Property{Value: "1"}
		}, stays: map[string]string{"vault/t/a": "a receive into it was interrupted"}},
		"another tool's snapshot": {there: []string{"vault/t/a@1 @2"}, change: func(v *RunState, _ *zfs.Listing) {
			scope, err := (&replicate.Job{Name: "j", Snapshots: replicate.Snapshots{Adopt: []string{"1"}}}).Scope()
			require.NoError(t, err)
			v.Survey.Scope = scope
		}, stays: map[string]string{"vault/t/a": "@2 does not belong to the job"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newRunState(t, parseListing("tank@1"), near+"mirror = { gone = \"4d\", limit = 2 }\n").withTarget(parseListing("vault/t@1"))
			there := parseListing(tt.there...)
			v.DueOrphans = map[string]*zfs.Listing{"near": there}
			for _, d := range there.Datasets {
				d.Properties["written"] = zfs.Property{Value: "0"}
				v.Survey.State.Orphans = append(v.Survey.State.Orphans, &replicate.Orphan{Target: "near", Dataset: d.Name, Source: "tank" + d.Name[len("vault/t"):], GUID: d.GUID, Waited: 4 * 24 * time.Hour})
			}
			if tt.change != nil {
				tt.change(v, there)
			}
			p := Decide(v).Prunings[0]
			require.Equal(t, tt.remove, p.Datasets)
			require.Len(t, p.OrphanRequests, len(tt.remove))
			require.Equal(t, tt.refused, p.Refused)
			if tt.stays == nil {
				tt.stays = map[string]string{}
			}
			require.Equal(t, tt.stays, texts(p.KeepReasons))
			if len(p.OrphanRequests) > 0 {
				last := p.OrphanRequests[len(p.OrphanRequests)-1]
				require.Equal(t, replicate.Tag("j", "near"), last.Tag)
				require.Len(t, last.Snapshots, len(there.Datasets[0].Snapshots()))
				require.NoError(t, last.Check())
			}
		})
	}
}
