package runner

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/zfs"
)

// mark sets a user property of a dataset. Its descendants inherit it.
func (r *replica) mark(dataset, property, value string) {
	r.Edit(func(all map[string]*zfs.Dataset) {
		for name, d := range all {
			switch {
			case name == dataset:
				d.Properties[property] = zfs.Property{Value: value, Source: "local"}
			case below(name, dataset) && !d.Properties[property].Local():
				d.Properties[property] = zfs.Property{Value: value, Source: "inherited from " + dataset}
			}
		}
	})
}

// selectingReplica returns a replica with two targets. Target t selects all datasets and u the marked ones,
// both without scratch.
func selectingReplica(t *testing.T, j replicate.Job) *replica {
	t.Helper()
	r := newReplica(t, j)
	r.job.Targets = append(r.job.Targets, replicate.Target{Name: "u", To: "dst/u", Selection: replicate.Selection{Property: "my:backup", Exclude: []string{"re:tmp"}},
		Retention: &retention.Grid{Last: 2}})
	for _, d := range []string{"src/b", "src/b/c", "src/b/tmp1"} {
		r.Create(d, nil)
	}
	r.mark("src/b", "my:backup", "yes")
	for _, s := range []string{"s1", "s2", "s3"} {
		r.everywhere(s)
	}
	r.now += 10
	return r
}

func (r *replica) everywhere(name string) {
	for _, d := range r.datasets("src") {
		r.snapshot(d, name)
	}
}

// TestTargetSelection expects that each target selects its own datasets, and that no run lists
// more. Excluded datasets are not late and have no holds for the target, and if the mark is
// removed, the copy is kept.
func TestTargetSelection(t *testing.T) {
	t.Parallel()
	r := selectingReplica(t, adopting())
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "%+v", run.Targets[1])
	require.Equal(t, []string{"dst", "dst/copy", "dst/copy/a", "dst/copy/b", "dst/copy/b/c", "dst/copy/b/tmp1", "dst/u", "dst/u/b", "dst/u/b/c"}, r.datasets("dst"))
	require.Empty(t, r.names("dst/u"), "an intermediate dataset")
	require.Equal(t, 5, run.Targets[0].Sent)
	require.Equal(t, 2, run.Targets[1].Sent)
	require.Equal(t, []string{"zxfer:j:t"}, r.held("src/a@s3"))
	require.ElementsMatch(t, []string{"zxfer:j:t", "zxfer:j:u"}, r.held("src/b@s3"))
	s := status.Of([]*replicate.Job{r.job}, r.dir, r.runner(t).Env.Now(), nil)
	require.Len(t, s.Jobs[0].Datasets, 5+2)

	r.now += 10
	r.run(t)
	r.now += 10
	run, looked := r.run(t)
	require.Empty(t, looked, "everything is up to date")
	require.Equal(t, []int{5, 2}, []int{run.Targets[0].Unchanged, run.Targets[1].Unchanged})

	r.now += 10
	r.mark("src/a", "my:backup", "yes")
	r.mark("src/b/c", "my:backup", "off")
	r.everywhere("s4")
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "%+v", run.Targets[1])
	require.Equal(t, []string{"s3", "s4"}, r.names("dst/u/a"), "retention keeps two")
	require.Equal(t, []string{"s3", "s4"}, r.names("dst/u/b"))
	require.Equal(t, []string{"s2", "s3"}, r.names("dst/u/b/c"), "unchanged")
	s = status.Of([]*replicate.Job{r.job}, r.dir, r.runner(t).Env.Now(), nil)
	require.False(t, slices.ContainsFunc(s.Jobs[0].Datasets, func(d *status.DatasetStatus) bool { return d.To == "u" && d.Source == "src/b/c" }))

	// Bookmarks that no incremental send needs are destroyed.
	for i := range 4 {
		r.now += 10
		r.everywhere("s" + string(rune('5'+i)))
		r.run(t)
	}
	require.Len(t, r.names("src/b/c", zfs.Bookmark), 1)
	require.Len(t, r.names("src/b", zfs.Bookmark), 1)
}

// TestJobSelectsByProperty expects that a job with property selects the datasets that have it, set or
// inherited. If no dataset has it, the job is refused with a hint.
func TestJobSelectsByProperty(t *testing.T) {
	t.Parallel()
	j := adopting()
	j.Property = "zxfer:job=home"
	r := newReplica(t, j)
	r.Create("src/b", nil)
	r.Create("src/b/c", nil)
	r.everywhere("s1")
	run, _ := r.run(t)
	require.Equal(t, outcome.Refused, run.Outcome)
	require.Contains(t, run.Hint, "zfs set zxfer:job=home src/DATASET")
	r.mark("src/b", "zxfer:job", "home")
	r.mark("src/a", "zxfer:job", "other")
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome)
	require.Equal(t, []string{"dst", "dst/copy", "dst/copy/b", "dst/copy/b/c"}, r.datasets("dst"))
}

// TestTargetWithoutDatasets expects that a target that excludes all datasets fails, without
// affecting other targets.
func TestTargetWithoutDatasets(t *testing.T) {
	t.Parallel()
	r := selectingReplica(t, adopting())
	r.job.Targets[1].Property = "my:other=x"
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Targets[0].Outcome)
	require.Equal(t, outcome.Refused, run.Targets[1].Outcome)
	require.Contains(t, run.Targets[1].Hint, "zfs set my:other=x")
	p, err := r.runner(t).Preview(t.Context(), r.job)
	require.NoError(t, err)
	require.Contains(t, p.Targets[1].Error, "exclude all")
	require.Error(t, p.Err())
}

// TestTargetSnapshotSelection expects that each target limits the number, age or names of snapshots. The
// most recent selected snapshot is always sent, and neither retention nor a later run requires the
// others.
func TestTargetSnapshotSelection(t *testing.T) {
	t.Parallel()
	j := adopting()
	j.Retention = nil
	j.Snapshots.Adopt = []string{"*"}
	r := newReplica(t, j)
	target := func(name string, s replicate.TargetSnapshots) replicate.Target {
		r.Create("p"+name, nil) // a separate pool
		return replicate.Target{Name: name, To: "p" + name + "/c", Snapshots: s}
	}
	r.job.Targets = []replicate.Target{
		target("all", replicate.TargetSnapshots{}),
		target("two", replicate.TargetSnapshots{SnapshotLimits: replicate.SnapshotLimits{Newest: 2}}),
		target("since", replicate.TargetSnapshots{SnapshotLimits: replicate.SnapshotLimits{Since: calendar.Duration(24 * time.Hour)}}),
		target("daily", replicate.TargetSnapshots{Only: []string{"re:^d"}}),
	}
	r.job.Targets[1].Retention = &retention.Grid{Last: 3}
	for _, s := range []string{"d1", "h1", "h2", "h3", "d2", "h4"} {
		r.everywhere(s)
	}
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "%+v", run)
	require.Equal(t, []string{"d1", "h1", "h2", "h3", "d2", "h4"}, r.names("pall/c/a"))
	require.Equal(t, []string{"d2", "h4"}, r.names("ptwo/c/a"))
	require.Equal(t, []string{"h4"}, r.names("psince/c/a"), "by the clock of the source all are older")
	require.Equal(t, []string{"d1", "d2"}, r.names("pdaily/c/a"))
	for _, s := range []string{"h5", "h6", "h7"} {
		r.everywhere(s)
	}
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "%+v", run)
	require.Equal(t, []string{"h4", "h6", "h7"}, r.names("ptwo/c/a"))
	require.Equal(t, []string{"h4", "h7"}, r.names("psince/c/a"))
	require.Equal(t, []string{"d1", "d2"}, r.names("pdaily/c/a"))
	require.Equal(t, outcome.UpToDate, run.Targets[3].Outcome)
	run, _ = r.run(t)
	require.Equal(t, outcome.UpToDate, run.Outcome)
}
