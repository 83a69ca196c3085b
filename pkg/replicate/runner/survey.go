package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	"golang.org/x/sync/errgroup"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// partialSurveyShare is the largest share of changed datasets, as 1/n, for which a partial survey pays. A
// partial survey reads the properties of changed datasets twice.
const partialSurveyShare = 4

// surveyChanged is survey without the snapshots of unchanged datasets. If few datasets are
// unchanged, or that is unknown, it lists everything.
func (w *jobRun) surveyChanged(ctx context.Context, settled *statedir.UnchangedCache) (*replicate.Survey, error) {
	held := slices.ContainsFunc(w.targets, func(t *side) bool { return w.heldBatch(t) != nil }) // its copies are not listed
	if held || len(settled.Datasets) == 0 || w.scope.Naming() != nil && !w.job.Snapshots.SkipUnchanged {
		return w.survey(ctx)
	}
	v, err := w.list(ctx, hosts.ListQuery{Changed: true, NoAncestors: true})
	if err != nil {
		return nil, err
	}
	may := replicate.UnchangedSources(v, settled.Datasets)
	if all := len(v.Source.Datasets); (all-len(may))*partialSurveyShare > all {
		return w.survey(ctx)
	}
	looked := w.activity("inspecting the copies of %s", english.Plural(len(may), "dataset", ""))
	moved, err := changedCopies(ctx, w.targets, v, settled, may)
	looked()
	if err != nil {
		return w.survey(ctx) // the batch of the target reports the error
	}
	for _, name := range may {
		if !moved[name] {
			v.Unchanged[name] = true
		}
	}
	return w.relist(ctx, v)
}

func (w *jobRun) list(ctx context.Context, q hosts.ListQuery) (*replicate.Survey, error) {
	q.Dataset, q.Recursive, q.User = w.source.at.Name, w.job.Recursive, w.job.UserProperties()
	defer w.activity("listing %s", w.source.at)()
	known := w.state.Datasets[q.Dataset]
	if w.job.Snapshots.SkipUnchanged { // "written" decides whether to take a snapshot
		w.source.host.Sync(ctx, q.Dataset)
	}
	back := restoreHint(w.source, w.targets, known, w.job.Recursive)
	l, err := w.source.list(ctx, q)
	if errors.Is(err, &zfs.Error{Kind: zfs.NotFound}) { // the pool is missing, for example after the loss of a host
		err = job.MissingPool(w.source.host, q.Dataset, err)
		if back != "" {
			err = &fault.Error{Class: fault.ClassOf(err), Hint: back, Err: err}
		}
	}
	if err != nil {
		return nil, err
	}
	if len(l.Datasets) == 0 {
		return nil, sourceMissing(ctx, w.source, w.targets, known, back)
	}
	v := &replicate.Survey{Job: w.job, Scope: w.scope, State: &w.state.State, Started: w.run.Started,
		Root: q.Dataset, All: l.Datasets, Source: &l, Unchanged: map[string]bool{}}
	v.Choose()
	w.state.FollowRenames(l.Datasets, slices.ContainsFunc(w.job.Targets, func(t replicate.Target) bool { return t.FollowsRenames() }))
	if w.run.Datasets = len(l.Datasets); w.run.Datasets == 0 {
		return nil, errAllExcluded(&w.job.Selection, w.source, len(v.All))
	}
	return v, nil
}

// errAllExcluded returns the error for a choice that excludes all datasets.
func errAllExcluded(c *replicate.Selection, source *side, of int) error {
	hint, all := "check the keys include and exclude", english.Plural(of, "dataset", "")
	if name, value, valued := strings.Cut(c.Property, "="); name != "" {
		if !valued {
			value = "on"
		}
		hint = "mark the datasets to include: " + zfs.CommandLine([]string{"zfs", "set", name + "=" + value, source.at.Name + "/DATASET"})
		return fault.Refusef(hint, "%s: include, exclude and property exclude all of its %s", source.at, all)
	}
	return fault.Refusef(hint, "%s: include and exclude exclude all of its %s", source.at, all)
}

// survey lists the source with all its snapshots.
func (w *jobRun) survey(ctx context.Context) (*replicate.Survey, error) {
	return w.list(ctx, hosts.ListQuery{Versions: true, Changed: true})
}

// changedCopies returns the datasets with a changed copy on any target.
func changedCopies(ctx context.Context, targets []*side, v *replicate.Survey, settled *statedir.UnchangedCache, names []string) (map[string]bool, error) {
	found := make([]map[string]map[string]zfs.Property, len(targets))
	g, gctx := errgroup.WithContext(ctx)
	for i, t := range targets {
		if t.target.Disk != nil { // the cache has no entry while a disk is away
			continue
		}
		var copies []string
		for _, n := range names {
			if v.Excluded[t.name][n] {
				continue
			}
			copies = append(copies, t.target.CopyOf(v.Root, n))
		}
		if len(copies) == 0 {
			continue
		}
		g.Go(func() (err error) {
			found[i], err = t.properties(gctx, copies, replicate.CopyProperties()...)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	moved := map[string]bool{}
	for i, t := range targets {
		for _, n := range names {
			if v.Excluded[t.name][n] {
				continue
			}
			if t.target.Disk != nil {
				moved[n] = true
				continue
			}
			copied := &zfs.Dataset{Properties: found[i][t.target.CopyOf(v.Root, n)]}
			if settled.Datasets[n].CopyChanged(t.name, copied, v.State.Copy(n, t.name)) {
				moved[n] = true
			}
		}
	}
	return moved, nil
}

// relist lists the datasets that are not known to be unchanged again, with their snapshots. It
// reuses the pool and ancestors of v if v has them.
func (w *jobRun) relist(ctx context.Context, v *replicate.Survey) (*replicate.Survey, error) {
	q := hosts.ListQuery{Dataset: v.Root, Versions: true, Changed: true, NoAncestors: v.Source.Pool.Name != ""}
	now, err := *v, error(nil)
	if len(v.Unchanged) == 0 {
		var all *replicate.Survey
		if all, err = w.list(ctx, q); err != nil {
			return nil, err
		}
		now = *all
	} else {
		l := *v.Source
		now.Source, l.Datasets = &l, nil
		for _, d := range v.Source.Datasets {
			if !v.Unchanged[d.Name] {
				q.Only = append(q.Only, d.Name)
			}
		}
		if len(q.Only) == 0 {
			return &now, nil
		}
		defer w.activity("listing %s of %s", english.Plural(len(q.Only), "dataset", ""), w.source.at)()
		l, err = w.source.list(ctx, q)
	}
	if q.NoAncestors {
		now.Source.Pool, now.Source.Ancestors = v.Source.Pool, v.Source.Ancestors
	}
	return &now, err
}

// sourceMissing returns the error for a source dataset that does not exist: unknown, renamed or
// destroyed.
func sourceMissing(ctx context.Context, source *side, targets []*side, known *replicate.DatasetState, back string) error {
	where, pool := source.host.Label()+":"+source.at.Name, zfs.PoolOf(source.at.Name)
	if known == nil || known.GUID == 0 {
		return fault.Refusef("list the datasets: "+zfs.CommandLine([]string{"zfs", "list", "-r", pool}), "%s: no such dataset", where)
	}
	all, err := source.list(ctx, hosts.ListQuery{Dataset: pool, Recursive: true})
	if err != nil {
		return err
	}
	for _, d := range all.Datasets {
		if d.GUID == known.GUID {
			return fault.Refusef(renameHint(source, targets, known, d.Name), "%s was renamed to %s", where, d.Name)
		}
	}
	hint := "if this is intended, delete the job from the file (its copies are kept)"
	if back != "" {
		hint = back + "\n" + hint
	}
	return fault.Refusef(hint, "%s was destroyed: pool %s has no dataset with its GUID %d",
		where, pool, known.GUID)
}

// restoreHint returns the commands that restore a source from its copies, or "" if it has none.
func restoreHint(source *side, targets []*side, known *replicate.DatasetState, recursive bool) string {
	if known == nil {
		return ""
	}
	var lines []string
	for _, t := range targets {
		a := known.Targets[t.name]
		if a == nil || a.Target == "" {
			continue
		}
		argv := []string{"zxfer", "restore", endpoint.Endpoint{Host: t.at.Host, Name: a.Target}.String(), source.at.String()}
		if recursive {
			argv = slices.Insert(argv, 2, "-R")
		}
		lines = append(lines, "to restore it: "+zfs.CommandLine(argv))
	}
	return strings.Join(lines, "\n")
}

// renameHint returns a hint how to follow a renamed source. If the name of a copy depends on it,
// the copy must be renamed first.
func renameHint(source *side, targets []*side, known *replicate.DatasetState, name string) string {
	at := source.at
	at.Name = name
	hint := fmt.Sprintf("write source = %q into the job file", at)
	for _, t := range targets {
		a, now := known.Targets[t.name], t.target.CopyOf(name, name)
		if a != nil && a.Target != "" && now != "" && a.Target != now {
			hint += fmt.Sprintf("\nrename the copy, on %s: %s", t.host.Label(), zfs.CommandLine([]string{"zfs", "rename", a.Target, now}))
		}
	}
	return hint
}
