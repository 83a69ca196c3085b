package replicate

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// A run may reach the limit, but not exceed it.
func TestPruneLimit(t *testing.T) {
	t.Parallel()
	for limit, refused := range map[string]bool{"1": true, "2": false, "3": false} {
		v := newRunState(t, parseListing("tank@1 @2 @3"), "prune_limit = "+limit+"\n[job.retention]\nlast = 1\n")
		v.State.Dataset("tank").Past = map[string]*History{SourceSide: {Dataset: 1000, Seen: 3, Kept: 3}}
		p := Decide(v).Prunings[0]
		require.Equal(t, refused, p.Refused, limit)
		require.Equal(t, refused, fault.ClassOf(p.Failed()) == fault.Refused, limit)
	}
}

// Snapshots that are kept because of holds do not count towards the limit of later runs.
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

// A changed grid destroys snapshots that are not superseded.
func TestBeyond(t *testing.T) {
	t.Parallel()
	v := newVault(t, &Grid{Hourly: 200})
	begin := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	now := v.receiveHonest(rand.New(rand.NewPCG(1, 15)), begin, begin.Add(20*day), time.Hour, time.Hour)
	require.Zero(t, v.limit)
	v.grid = &Grid{Hourly: 20}
	require.Equal(t, 180, v.grid.Prunable(v.d, v.scope, v.created, nil, v.history, now).OverLimit)
}
