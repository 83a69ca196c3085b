package runner

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// TestCopyOfRecreatedSourceIsRenamed recreates a source or target dataset in several ways, and
// expects that the run renames one copy.
func TestCopyOfRecreatedSourceIsRenamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		job  func(*replicate.Job)
		anew func(*testing.T, *replica)
	}{
		"child":                  {anew: func(t *testing.T, r *replica) { r.Remove("src/a"); r.Create("src/a", nil) }},
		"root":                   {anew: func(t *testing.T, r *replica) { r.Remove("src"); r.Create("src", nil); r.Create("src/a", nil) }},
		"not recursive":          {job: func(j *replicate.Job) { j.Recursive = false }, anew: func(t *testing.T, r *replica) { r.Remove("src"); r.Create("src", nil); r.Create("src/a", nil) }},
		"root without its child": {anew: func(t *testing.T, r *replica) { r.Remove("src"); r.Create("src", nil) }},
		"root missing in between": {anew: func(t *testing.T, r *replica) {
			r.Remove("src")
			r.Create("src2", nil)
			r.now += 100
			r.run(t)
			r.now += 100
			r.Create("src", nil)
			r.Create("src/a", nil)
		}},
		"root missing, then without child": {anew: func(t *testing.T, r *replica) {
			r.Remove("src")
			r.now += 100
			r.run(t)
			r.now += 100
			r.Create("src", nil)
		}},
		"root recreated, interrupted": {anew: func(t *testing.T, r *replica) {
			r.Remove("src")
			r.Create("src", nil)
			r.now += 100
			r.snapshot("src", "s2")
			r.fail(zfs.OpRename, "dst/copy", errors.New("cut"))
			r.run(t)
			r.fail("", "", nil)
		}},
		"volume": {anew: func(t *testing.T, r *replica) {
			r.Remove("src/a")
			r.Create("src/a", map[string]string{"type": "volume"})
		}},
		"run in between": {anew: func(t *testing.T, r *replica) {
			r.Remove("src/a")
			r.now += 100
			r.snapshot("src", "m")
			r.run(t)
			r.now += 100
			r.Create("src/a", nil)
		}},
		"run in between, interrupted": {anew: func(t *testing.T, r *replica) {
			r.Remove("src/a")
			r.now += 100
			r.snapshot("src", "m")
			r.run(t)
			r.now += 100
			r.Create("src/a", nil)
			r.snapshot("src/a", "s2")
			r.fail(zfs.OpRename, "dst/copy/a", errors.New("cut"))
			r.run(t)
			r.fail("", "", nil)
		}},
		"run before a snapshot": {anew: func(t *testing.T, r *replica) {
			r.Remove("src/a")
			r.Create("src/a", nil)
			r.now += 100
			r.snapshot("src", "m")
			r.run(t)
			r.now += 100
		}},
		"target recreated": {anew: func(t *testing.T, r *replica) {
			r.Remove("dst/copy/a")
			r.Create("dst/copy/a", nil)
		}},
		"target recreated with snapshot": {anew: func(t *testing.T, r *replica) {
			r.Remove("dst/copy/a")
			r.Create("dst/copy/a", nil)
			r.snapshot("dst/copy/a", "x")
		}},
		"renamed and recreated": {anew: func(t *testing.T, r *replica) {
			r.Edit(func(all map[string]*zfs.Dataset) {
				d := all["src/a"]
				d.Name = "src/b"
				all["src/b"] = d
				delete(all, "src/a")
			})
			r.Create("src/a", nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := renamingReplica(t)
			if c.job != nil {
				c.job(r.job)
			}
			c.anew(t, r)
			r.now += 100
			for _, d := range []string{"src", "src/a"} {
				if r.Versions(d) != nil || r.Get(d, "type") != "" {
					r.snapshot(d, "s2")
				}
			}
			run, _ := r.run(t)
			t.Log(run.Outcome, run.Error)
			for _, d := range run.Targets[0].Datasets {
				t.Log(d.Source, d.Outcome, d.Conflict, d.Error, d.RenamedTo)
			}
			require.Equal(t, outcome.Done, run.Outcome)
			require.Len(t, r.renamedCopies(), 1)
		})
	}
}
