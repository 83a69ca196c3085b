package send

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// TestEstimateSimulatedSnapshot expects that a stream to a future snapshot is as long as one to the most recent
// snapshot, plus the bytes written since.
func TestEstimateSimulatedSnapshot(t *testing.T) {
	t.Parallel()
	d := &zfs.Dataset{Name: "src/a",
		Properties: map[string]zfs.Property{"written": {Value: "1000"}, "referenced": {Value: "50000"}},
		Versions: []zfs.Version{{Kind: zfs.Snapshot, Name: "s1", GUID: 1, CreateTXG: 1}, {Kind: zfs.Bookmark, Name: "s2", GUID: 2, CreateTXG: 2},
			{Kind: zfs.Snapshot, Name: "s2", GUID: 2, CreateTXG: 2}}}
	never := &zfs.Dataset{Name: "src/b", Properties: map[string]zfs.Property{"written": {Value: "0"}, "referenced": {Value: "98304"}}}
	l := plan.Simulate(zfs.Listing{Datasets: []*zfs.Dataset{d, never}}, func(string) string { return "new" })
	taken, _ := l.Datasets[0].Latest()
	first, _ := l.Datasets[1].Latest()
	c := zfs.StreamFlags{Compressed: true}
	step := func(to zfs.Version, base uint64, spec zfs.SendSpec) plan.Step {
		return plan.Step{Send: spec, BaseGUID: base, ToGUID: to.GUID}
	}
	for name, tt := range map[string]struct {
		of    int
		step  plan.Step
		asked *zfs.SendSpec
		bytes uint64
	}{
		"existing snapshot":             {0, step(d.Versions[0], 0, zfs.SendSpec{To: "s1", Flags: c}), &zfs.SendSpec{To: "s1", Flags: c}, 0},
		"first snapshot":                {1, step(first, 0, zfs.SendSpec{To: "new", Flags: c}), nil, 98304},
		"full":                          {0, step(taken, 0, zfs.SendSpec{To: "new", Flags: c}), nil, 50000},
		"full, decompressed":            {0, step(taken, 0, zfs.SendSpec{To: "new"}), nil, 0},
		"from the most recent snapshot": {0, step(taken, 2, zfs.SendSpec{From: "@s2", To: "new", Flags: c}), nil, 1000},
		"from a bookmark":               {0, step(taken, 2, zfs.SendSpec{From: "#s2", To: "new", Flags: c}), nil, 1000},
		"from an older snapshot": {0, step(taken, 1, zfs.SendSpec{From: "@s1", Through: []string{"s2"}, To: "new", Flags: c}),
			&zfs.SendSpec{From: "@s1", Through: []string{}, To: "s2", Flags: c}, 1000},
		"clone": {1, step(first, 7, zfs.SendSpec{From: "src/x@s", To: "new", Flags: c}), nil, emptyStream},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.asked, estimateSpec(&tt.step, l.Datasets[tt.of]))
			require.Equal(t, tt.bytes, tt.step.Bytes)
		})
	}
}

// planRecorder records the planned sizes.
type planRecorder struct {
	Quiet
	bytes []uint64
}

func (s *planRecorder) Planned(r *Report) { s.bytes = append(s.bytes, r.Plan.Bytes()) }

// TestSizesBeforeTheSnapshot expects that sizes are known before the snapshot is taken.
func TestSizesBeforeTheSnapshot(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"s1"}, "dst": nil})
	w.Memory.Set("src/a", "written", "5000000")
	w.Memory.Set("src/a", "copies", "2")
	rep := &planRecorder{}
	r, err := Run(t.Context(), sendRequest(func(s *Request) {
		s.TakeSnapshot, s.Plan.Snapshot, s.DryRun = "new", "new", true
	}), hosts.New(w), rep)
	require.NoError(t, err)
	require.EqualValues(t, 2500000, rep.bytes[0], "written counts both copies of each block")
	require.Equal(t, rep.bytes[0], r.Plan.Bytes())
	require.EqualValues(t, 5000000, r.Growth.Bytes, "the target stores both copies, too")
	require.Equal(t, "dst", r.Growth.Target)
}
