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
	"zxfer/pkg/job/ends"
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
	v, err := w.list(ctx, hosts.ListQuery{Changed: true, NoAncestors: true}, w.job.Snapshots.SkipUnchanged)
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
	return w.newRelisting(v).finish(ctx)
}

// list lists the source. With sync, it first writes out pending changes, which "written" lacks otherwise.
func (w *jobRun) list(ctx context.Context, q hosts.ListQuery, sync bool) (*replicate.Survey, error) {
	defer w.activity("listing %s", w.source.at)()
	q = w.wholeSource(q)
	if sync {
		synced := []hosts.Change{hosts.OpSync.Change(w.source.at.Name)}
		if found, err := hosts.Call(ctx, w.source, hosts.OpApply, hosts.ChangeList{Changes: synced, List: &q}); err == nil {
			return w.surveyOf(ctx, &found)
		} // for example without the permission of the account for zpool
	}
	found, err := hosts.Call(ctx, w.source, hosts.OpList, q)
	if err != nil {
		return nil, w.listError(err)
	}
	return w.surveyOf(ctx, &found)
}

// wholeSource returns a query for all datasets of the job.
func (w *jobRun) wholeSource(q hosts.ListQuery) hosts.ListQuery {
	q.Dataset, q.Recursive, q.User = w.source.at.Name, w.job.Recursive, w.job.UserProperties()
	return q
}

// restoreHint returns the commands that restore the source from its copies, or "" if it has none.
func (w *jobRun) restoreHint() string {
	return restoreHint(w.source, w.targets, w.state.Datasets[w.source.at.Name], w.job.Recursive)
}

// listError completes the error of a listing of the source.
func (w *jobRun) listError(err error) error {
	if !errors.Is(err, &zfs.Error{Kind: zfs.NotFound}) {
		return err
	}
	err = ends.MissingPool(w.source.host, w.source.at.Name, err) // for example after the loss of a host
	if back := w.restoreHint(); back != "" {
		err = &fault.Error{Class: fault.ClassOf(err), Hint: fault.HintOf(err) + "\n" + back, Err: err}
	}
	return err
}

// surveyOf returns the survey of a listing of all datasets of the job.
func (w *jobRun) surveyOf(ctx context.Context, l *zfs.Listing) (*replicate.Survey, error) {
	root := w.source.at.Name
	if len(l.Datasets) == 0 {
		return nil, sourceMissing(ctx, w.source, w.targets, w.state.Datasets[root], w.restoreHint())
	}
	v := &replicate.Survey{SourceAt: w.source.host.At(), Job: w.job, Scope: w.scope, State: &w.state.State, Started: w.run.Started,
		Root: root, All: l.Datasets, Source: l, Unchanged: map[string]bool{}}
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
		hint = "mark the datasets to include: " + source.host.Command("zfs", "set", name+"="+value, source.at.Name+"/DATASET")
		return fault.Refusef(hint, "%s: include, exclude and property exclude all of its %s", source.at, all)
	}
	return fault.Refusef(hint, "%s: include and exclude exclude all of its %s", source.at, all)
}

// survey lists the source with all its snapshots.
func (w *jobRun) survey(ctx context.Context) (*replicate.Survey, error) {
	return w.list(ctx, hosts.ListQuery{Versions: true, Changed: true}, w.job.Snapshots.SkipUnchanged)
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

// relisting lists the datasets that are not known to be unchanged again, with their snapshots. It
// reuses the pool and ancestors of the survey v if v has them.
type relisting struct {
	*jobRun
	v     *replicate.Survey
	query *hosts.ListQuery // nil if all datasets are unchanged
	found *zfs.Listing     // the answer; nil = not listed yet
}

func (w *jobRun) newRelisting(v *replicate.Survey) *relisting {
	l := &relisting{jobRun: w, v: v}
	q := hosts.ListQuery{Dataset: v.Root, Versions: true, Changed: true, NoAncestors: v.Source.Pool.Name != ""}
	if len(v.Unchanged) == 0 {
		q = w.wholeSource(q)
	} else {
		for _, d := range v.Source.Datasets {
			if !v.Unchanged[d.Name] {
				q.Only = append(q.Only, d.Name)
			}
		}
		if len(q.Only) == 0 {
			return l
		}
	}
	l.query = &q
	return l
}

// after takes snapshots and then lists, in one round trip. It returns the error of the snapshots. After a lost
// connection, it repeats nothing.
func (l *relisting) after(ctx context.Context, snapshots []string) error {
	list := hosts.ChangeList{Changes: []hosts.Change{hosts.OpSnapshot.Change(snapshots)}, List: l.query}
	found, err := hosts.Call(ctx, l.source.host, hosts.OpApply, list)
	if err == nil && l.query != nil {
		l.found = &found
	}
	if hosts.Done(err) == len(list.Changes) {
		return nil // finish repeats the listing
	}
	return err
}

// finish returns the new survey. It lists unless after did.
func (l *relisting) finish(ctx context.Context) (*replicate.Survey, error) {
	v := l.v
	if l.query == nil {
		now, none := *v, *v.Source
		now.Source, none.Datasets = &none, nil
		return &now, nil
	}
	q := *l.query
	if l.found == nil {
		what := l.source.at.String()
		if n := len(q.Only); n > 0 {
			what = english.Plural(n, "dataset", "") + " of " + what
		}
		defer l.activity("listing %s", what)()
		found, err := hosts.Call(ctx, l.source, hosts.OpList, q)
		if err != nil {
			return nil, l.listError(err)
		}
		l.found = &found
	}
	now := *v
	if len(q.Only) > 0 {
		now.Source = l.found
	} else if all, err := l.surveyOf(ctx, l.found); err != nil {
		return nil, err
	} else {
		now = *all
	}
	if q.NoAncestors {
		now.Source.Pool, now.Source.Ancestors = v.Source.Pool, v.Source.Ancestors
	}
	return &now, nil
}

// sourceMissing returns the error for a source dataset that does not exist: unknown, renamed or
// destroyed.
func sourceMissing(ctx context.Context, source *side, targets []*side, known *replicate.DatasetState, back string) error {
	where, pool := source.host.Label()+":"+source.at.Name, zfs.PoolOf(source.at.Name)
	if known == nil || known.GUID == 0 {
		return fault.Refusef("list the datasets: "+source.host.Command("zfs", "list", "-r", pool), "%s: no such dataset", where)
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
			hint += "\nrename the copy: " + t.host.Command("zfs", "rename", a.Target, now)
		}
	}
	return hint
}
