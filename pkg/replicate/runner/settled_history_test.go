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
	"zxfer/pkg/replicate/record"
	"zxfer/pkg/zfs"
)

// Over random histories, a run that leaves out what is settled does what one
// does that knows of nothing settled.
func TestSettledHistories(t *testing.T) {
	t.Parallel()
	jobs := map[string]replicate.Job{
		"adopt": adopting(),
		"take":  {Snapshots: replicate.Snapshots{Take: "s%Y%m%d%H%M%S", SkipUnchanged: true}, Retention: &replicate.Grid{Last: 2}},
	}
	for name, j := range jobs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			skipped := 0
			for seed := range uint64(3) {
				skipped += history(t, j, seed)
			}
			require.Greater(t, skipped, 15, "too little was ever settled to test anything")
		})
	}
}

// history returns in how many runs less was looked at.
func history(t *testing.T, j replicate.Job, seed uint64) (skipped int) {
	t.Helper()
	quick, slow := settledReplica(t, j), settledReplica(t, j)
	slow.now = quick.now
	rnd := rand.New(rand.NewPCG(seed, 1))
	var log []string
	for step := range 30 {
		op, n, a, b := rnd.IntN(19), rnd.IntN(100), rnd.IntN(100), rnd.IntN(100)
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
		require.Equal(t, brief(is), brief(was), "seed %d:\n%s", seed, history)
	}
	return skipped
}

// brief is what a record must tell whether or not anything was left out.
func brief(r *record.Run) string {
	out := fmt.Sprintln(r.Outcome, r.Error, r.Datasets, r.Snapshots, r.Pruned, r.Notes)
	for _, t := range r.Targets {
		out += fmt.Sprintln(t.Outcome, t.Error, t.Sent, t.Unchanged, t.Failed, t.Pruned)
		var all []string
		for _, d := range t.Datasets {
			all = append(all, fmt.Sprintln(d.Source, d.Snapshot, d.Outcome, d.Conflict, d.Error))
		}
		out += strings.Join(slices.Sorted(slices.Values(all)), "") // in any order of those that need each other not
	}
	return out
}

// change does something to the world and says what.
func (r *replica) change(op, n, a, b, step int) string {
	names := func(pool string) (out []string) {
		for name := range r.datasets {
			if zfs.PoolOf(name) == pool && name != "dst" {
				out = append(out, name)
			}
		}
		slices.Sort(out)
		return out
	}
	pool := "src"
	if a%3 == 0 {
		pool = "dst"
	}
	all := names(pool)
	if len(all) == 0 {
		return "nothing"
	}
	name := all[n%len(all)]
	d := r.datasets[name]
	var some zfs.Version
	if len(d.Versions) > 0 {
		some = d.Versions[b%len(d.Versions)]
	}
	below := func(dataset, part string) bool { return dataset == part || strings.HasPrefix(dataset, part+"/") }
	cloned := false
	for _, o := range r.datasets {
		of, _, _ := strings.Cut(o.Get("origin"), "@")
		cloned = cloned || below(of, name)
	}
	switch {
	case op < 4:
		name = names("src")[n%len(names("src"))]
		r.snapshot(name, fmt.Sprintf("s%d", step))
		return "snapshot " + name
	case op < 6:
		name = names("src")[n%len(names("src"))]
		set(r.datasets[name], "written", "100")
		return "write " + name
	case op == 6:
		r.snapshot(name, fmt.Sprintf("x%d", step))
		return "snapshot of others of " + name
	case op < 9 && some.Name != "":
		return fmt.Sprint("destroy ", some.In(name), ": ", r.destroy(some.In(name)))
	case op == 9 && some.Kind == zfs.Snapshot && !r.busy(d, some):
		_, i := r.find(some.In(name))
		d.Versions[i].Name = fmt.Sprintf("s%dr", step)
		r.changed(d)
		return "rename " + some.In(name)
	case op == 10 && name != "src" && !cloned:
		r.remove(name)
		if pool == "src" {
			r.create(name)
		}
		return "destroy, and of the source create anew, " + name
	case op == 11:
		r.create(fmt.Sprintf("src/n%d", step))
		return fmt.Sprintf("create src/n%d", step)
	case op == 12 && pool == "src" && some.Kind == zfs.Snapshot:
		c := r.create(fmt.Sprintf("src/c%d", step))
		set(c, "origin", some.In(name))
		return "clone " + some.In(name) + " to " + c.Name
	case op == 13 && pool == "src":
		r.promote(name)
		return "promote " + name
	case op == 14:
		d.Versions = slices.DeleteFunc(d.Versions, func(v zfs.Version) bool { return v.Kind == zfs.Bookmark })
		return "destroy the bookmarks of " + name
	case op == 15 && some.Kind == zfs.Snapshot:
		d.Versions = append(d.Versions, zfs.Version{Kind: zfs.Bookmark, Name: fmt.Sprint("m", step), GUID: some.GUID, CreateTXG: some.CreateTXG})
		return "bookmark " + some.In(name)
	case op == 16 && some.Kind == zfs.Snapshot:
		key := holdKey(d, some)
		if r.holds[key] = append(r.holds[key], "mine"); len(r.holds[key])%2 == 0 {
			delete(r.holds, key)
		}
		return "hold, or release, " + some.In(name)
	case op == 17:
		set(d, "encryptionroot", fmt.Sprint(name, step))
		return "change the encryption root of " + name
	case op == 18 && pool == "dst" && name != "dst/copy" && !cloned:
		moved := fmt.Sprintf("dst/copy/old%d", step)
		delete(r.datasets, name)
		d.Name = moved
		r.datasets[moved] = d
		return "rename " + name + " to " + moved
	}
	return "nothing"
}
