package replicate

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// What is held stays, run after run, and is no reason to refuse the next.
func TestHeldSnapshotsAreNotBeyondTheLimit(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	g, s, h := &Grid{Hourly: 24}, &Scope{adopt: plan.ParsePatterns([]string{"*"})}, &History{}
	d, created := &zfs.Dataset{Name: "vault/a"}, map[string]time.Time{}
	take := func(i int) {
		name := fmt.Sprint("s", i)
		d.Versions = append(d.Versions, zfs.Version{Kind: zfs.Snapshot, Name: name, GUID: uint64(i + 1), CreateTXG: uint64(i + 1)})
		created[name] = begin.Add(time.Duration(i) * time.Hour)
	}
	for i := range 200 {
		take(i)
	}
	for run := range 3 {
		r := g.Prunable(d, s, created, nil, h, begin.Add(time.Duration(199+run)*time.Hour))
		require.Len(t, r.Remove, 176+run, "nothing could be destroyed, as all are held")
		require.Zero(t, r.OverLimit, "run %d", run)
		h.Removed()
		take(200 + run)
	}
}

// Another tool takes a snapshot between the beginning of a run, which dates the
// job's own, and the job's: neither is doubted.
func TestTwoToolsTakeSnapshotsAtOnce(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	h := &History{}
	var points []Point
	for i := range 50 {
		at := begin.Add(time.Duration(i) * time.Hour)
		points = append(points, Point{Name: fmt.Sprint("other", i), Time: at.Add(40 * time.Second), Order: uint64(2*i + 1)},
			Point{Name: fmt.Sprint("own", i), Time: at, Order: uint64(2*i + 2)})
		h.trustedPoints(points, at.Add(time.Minute))
	}
	require.Zero(t, h.Doubts())
}
