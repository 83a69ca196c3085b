package runner

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// TestUnchangedHistories expects that over random histories, a run that skips unchanged datasets
// has the same result as one that does not.
func TestUnchangedHistories(t *testing.T) {
	t.Parallel()
	jobs := map[string]replicate.Job{
		"adopt": adopting(),
		"take":  {Snapshots: replicate.Snapshots{Take: "s%Y%m%d%H%M%S", SkipUnchanged: true}, Retention: &retention.Grid{Last: 2}},
	}
	choice := adopting()
	choice.Targets = []replicate.Target{{Name: "u", To: "far/u", Retention: &retention.Grid{Last: 3}, Selection: replicate.Selection{Property: "my:u"},
		Snapshots: replicate.TargetSnapshots{Only: []string{"re:[0-9]$"}, SnapshotLimits: replicate.SnapshotLimits{Newest: 2}}}}
	jobs["choice"] = choice
	for name, j := range jobs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			skipped := 0
			for seed := range uint64(3) {
				skipped += history(t, j, seed)
			}
			require.Greater(t, skipped, 15, "too few datasets were unchanged to test anything")
		})
	}
}

// history returns the number of runs that skipped datasets.
func history(t *testing.T, j replicate.Job, seed uint64) (skipped int) {
	t.Helper()
	quick, slow := unchangedReplica(t, j), unchangedReplica(t, j)
	slow.now = quick.now
	rnd := rand.New(rand.NewPCG(seed, 1))
	var log []string
	for step := range 30 {
		op, n, a, b := rnd.IntN(21), rnd.IntN(100), rnd.IntN(100), rnd.IntN(100)
		wait := []int64{0, 0, 1, 2, 3, 3600}[rnd.IntN(6)]
		var what string
		for _, r := range []*replica{quick, slow} {
			r.now += wait
			what = r.change(op, n, a, b, step)
		}
		log = append(log, fmt.Sprintf("+%d s: %s", wait, what))
		if rnd.IntN(3) == 0 {
			continue
		}
		// Seconds may pass between the change and the run, or none.
		wait = []int64{0, 1, 2, 5}[rnd.IntN(4)]
		quick.now, slow.now = quick.now+wait, slow.now+wait
		_ = os.Remove(filepath.Join(slow.dir, "j", "settled.json")) // the first run has none
		was, looked := quick.run(t)
		is, all := slow.run(t)
		if len(looked) < len(all) {
			skipped++
		}
		log = append(log, fmt.Sprintf("+%d s: run: looked at %v", wait, looked))
		history := strings.Join(log, "\n")
		require.Equal(t, slow.state(), quick.state(), "seed %d:\n%s", seed, history)
		require.Equal(t, summaryOf(is), summaryOf(was), "seed %d:\n%s", seed, history)
	}
	return skipped
}

// summaryOf returns the part of a record that must be the same with and without skipped datasets.
func summaryOf(r *statedir.Run) string {
	out := fmt.Sprintln(r.Outcome, r.Error, r.Datasets, r.Snapshots, r.Pruned, r.Notes)
	for _, t := range r.Targets {
		out += fmt.Sprintln(t.Outcome, t.Error, t.Sent, t.Unchanged, t.Failed, t.Pruned)
		var all []string
		for _, d := range t.Datasets {
			all = append(all, fmt.Sprintln(d.Source, d.Snapshot, d.Outcome, d.Conflict, d.Error))
		}
		out += strings.Join(slices.Sorted(slices.Values(all)), "") // independent datasets may be in any order
	}
	return out
}

// change changes the replica and returns a description.
func (r *replica) change(op, n, a, b, step int) string {
	pool := "src"
	if a%3 == 0 {
		pool = "dst"
	}
	all := slices.DeleteFunc(r.datasets(pool), func(n string) bool { return n == "dst" })
	if len(all) == 0 {
		return "nothing"
	}
	name, source := all[n%len(all)], r.datasets("src")
	var some zfs.Version
	if have := r.Versions(name); len(have) > 0 {
		some = have[b%len(have)]
	}
	snapshot, cloned, used := some.In(name), false, false
	for _, other := range r.datasets("") {
		origin := r.Get(other, "origin")
		cloned, used = cloned || below(origin, name), used || origin == snapshot
	}
	switch {
	case op < 4:
		name = source[n%len(source)]
		r.snapshot(name, fmt.Sprintf("s%d", step))
		return "snapshot " + name
	case op < 6:
		name = source[n%len(source)]
		r.Set(name, "written", "100")
		return "write " + name
	case op == 6:
		r.snapshot(name, fmt.Sprintf("x%d", step))
		return "snapshot of others of " + name
	case op < 9 && some.Name != "":
		return fmt.Sprint("destroy ", snapshot, ": ", r.Destroy(r.t.Context(), []string{snapshot}))
	case op == 9 && some.Kind == zfs.Snapshot && !used && len(r.held(snapshot)) == 0:
		r.renameSnapshot(name, some.Name, fmt.Sprintf("s%dr", step))
		return "rename " + snapshot
	case op == 10 && name != "src" && !cloned:
		r.Remove(name)
		if pool == "src" {
			r.Create(name, nil)
		}
		return "destroy, and recreate on the source, " + name
	case op == 11:
		r.Create(fmt.Sprintf("src/n%d", step), nil)
		return fmt.Sprintf("create src/n%d", step)
	case op == 12 && pool == "src" && some.Kind == zfs.Snapshot:
		r.Clone(snapshot, fmt.Sprintf("src/c%d", step))
		return fmt.Sprintf("clone %s to src/c%d", snapshot, step)
	case op == 13 && pool == "src":
		r.promote(name)
		return "promote " + name
	case op == 14:
		for _, mark := range r.names(name, zfs.Bookmark) {
			r.destroy(name + "#" + mark)
		}
		return "destroy the bookmarks of " + name
	case op == 15 && some.Kind == zfs.Snapshot:
		require.NoError(r.t, r.Bookmark(r.t.Context(), map[string]string{fmt.Sprint(name, "#m", step): snapshot}))
		return "bookmark " + snapshot
	case op == 16 && some.Kind == zfs.Snapshot:
		do := r.Hold
		if slices.Contains(r.held(snapshot), "mine") {
			do = r.Release
		}
		require.NoError(r.t, do(r.t.Context(), "mine", []string{snapshot}))
		return "hold, or release, " + snapshot
	case op == 17:
		r.Set(name, "encryptionroot", fmt.Sprint(name, step))
		return "change the encryption root of " + name
	case op == 18 && pool == "dst" && name != "dst/copy" && !cloned:
		moved := fmt.Sprintf("dst/copy/old%d", step)
		r.rename(name, moved)
		return "rename " + name + " to " + moved
	case op > 18:
		name = source[n%len(source)]
		value := []string{"yes", "no"}[b%2]
		r.mark(name, "my:u", value)
		return "mark " + name + ": " + value
	}
	return "nothing"
}
