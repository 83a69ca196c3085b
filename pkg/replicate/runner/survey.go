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
	held := slices.ContainsFunc(w.session.Targets, func(t *side) bool { return w.heldBatch(t) != nil }) // its copies are not listed
	if held || len(settled.Datasets) == 0 || w.session.Scope.Naming() != nil && !w.session.Job.Snapshots.SkipUnchanged {
		return w.survey(ctx)
	}
	v, err := w.list(ctx, hosts.ListQuery{Changed: true, NoAncestors: true}, w.session.Job.Snapshots.SkipUnchanged)
	if err != nil {
		return nil, err
	}
	may := replicate.UnchangedSources(v, settled.Datasets)
	if all := len(v.Source.Datasets); (all-len(may))*partialSurveyShare > all {
		return w.survey(ctx)
	}
	looked := w.session.Activity("inspecting the copies of %s", english.Plural(len(may), "dataset", ""))
	moved, err := changedCopies(ctx, w.session.Targets, v, settled, may)
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
	defer w.session.Activity("listing %s", w.session.Source.At)()
	q = w.wholeSource(q)
	if sync {
		synced := []hosts.Change{hosts.OpSync.Change(w.session.Source.At.Name)}
		if found, err := hosts.Call(ctx, w.session.Source, hosts.OpApply, hosts.ChangeList{Changes: synced, List: &q}); err == nil {
			return w.surveyOf(ctx, &found)
		} // for example without the permission of the account for zpool
	}
	found, err := hosts.Call(ctx, w.session.Source, hosts.OpList, q)
	if err != nil {
		return nil, w.listError(err)
	}
	return w.surveyOf(ctx, &found)
}

// wholeSource returns a query for all datasets of the job.
func (w *jobRun) wholeSource(q hosts.ListQuery) hosts.ListQuery {
	q.Dataset, q.Recursive, q.User = w.session.Source.At.Name, w.session.Job.Recursive, w.session.Job.UserProperties()
	return q
}

// restoreHint returns the commands that restore the source from its copies, or "" if it has none.
func (w *jobRun) restoreHint() string {
	return restoreHint(w.session.Source, w.session.Targets, w.session.State.Datasets[w.session.Source.At.Name], w.session.Job.Recursive)
}

// listError completes the error of a listing of the source.
func (w *jobRun) listError(err error) error {
	if !errors.Is(err, &zfs.Error{Kind: zfs.NotFound}) {
		return err
	}
	err = ends.MissingPool(w.session.Source.Host, w.session.Source.At.Name, err) // for example after the loss of a host
	if back := w.restoreHint(); back != "" {
		err = &fault.Error{Class: fault.ClassOf(err), Hint: fault.HintOf(err) + "\n" + back, Err: err}
	}
	return err
}

// surveyOf returns the survey of a listing of all datasets of the job.
func (w *jobRun) surveyOf(ctx context.Context, l *zfs.Listing) (*replicate.Survey, error) {
	root := w.session.Source.At.Name
	if len(l.Datasets) == 0 {
		return nil, sourceMissing(ctx, w.session.Source, w.session.Targets, w.session.State.Datasets[root], w.restoreHint())
	}
	v := &replicate.Survey{SourceAt: w.session.Source.Host.At(), Job: w.session.Job, Scope: w.session.Scope, State: &w.session.State.State, Started: w.run.Started,
		Root: root, All: l.Datasets, Source: l, Unchanged: map[string]bool{}}
	v.Choose()
	w.session.State.FollowRenames(l.Datasets, slices.ContainsFunc(w.session.Job.Targets, func(t replicate.Target) bool { return t.FollowsRenames() }))
	if w.run.Datasets = len(l.Datasets); w.run.Datasets == 0 {
		return nil, errAllExcluded(&w.session.Job.Selection, w.session.Source, len(v.All))
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
		hint = "mark the datasets to include: " + source.Host.Command("zfs", "set", name+"="+value, source.At.Name+"/DATASET")
		return fault.Refusef(hint, "%s: include, exclude and property exclude all of its %s", source.At, all)
	}
	return fault.Refusef(hint, "%s: include and exclude exclude all of its %s", source.At, all)
}

// survey lists the source with all its snapshots.
func (w *jobRun) survey(ctx context.Context) (*replicate.Survey, error) {
	return w.list(ctx, hosts.ListQuery{Versions: true, Changed: true}, w.session.Job.Snapshots.SkipUnchanged)
}

// changedCopies returns the datasets with a changed copy on any target.
func changedCopies(ctx context.Context, targets []*side, v *replicate.Survey, settled *statedir.UnchangedCache, names []string) (map[string]bool, error) {
	found := make([]map[string]map[string]zfs.Property, len(targets))
	g, gctx := errgroup.WithContext(ctx)
	for i, t := range targets {
		if t.Target.Disk != nil { // the cache has no entry while a disk is away
			continue
		}
		var copies []string
		for _, n := range names {
			if v.Excluded[t.Name][n] {
				continue
			}
			copies = append(copies, t.Target.CopyOf(v.Root, n))
		}
		if len(copies) == 0 {
			continue
		}
		g.Go(func() (err error) {
			found[i], err = t.Properties(gctx, copies, replicate.CopyProperties()...)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	moved := map[string]bool{}
	for i, t := range targets {
		for _, n := range names {
			if v.Excluded[t.Name][n] {
				continue
			}
			if t.Target.Disk != nil {
				moved[n] = true
				continue
			}
			copied := &zfs.Dataset{Properties: found[i][t.Target.CopyOf(v.Root, n)]}
			if settled.Datasets[n].CopyChanged(t.Name, copied, v.State.Copy(n, t.Name)) {
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
	found, err := hosts.Call(ctx, l.session.Source.Host, hosts.OpApply, list)
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
		what := l.session.Source.At.String()
		if n := len(q.Only); n > 0 {
			what = english.Plural(n, "dataset", "") + " of " + what
		}
		defer l.session.Activity("listing %s", what)()
		found, err := hosts.Call(ctx, l.session.Source, hosts.OpList, q)
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
	where, pool := source.Host.Label()+":"+source.At.Name, zfs.PoolOf(source.At.Name)
	if known == nil || known.GUID == 0 {
		return fault.Refusef("list the datasets: "+source.Host.Command("zfs", "list", "-r", pool), "%s: no such dataset", where)
	}
	all, err := source.List(ctx, hosts.ListQuery{Dataset: pool, Recursive: true})
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
		a := known.Targets[t.Name]
		if a == nil || a.Target == "" {
			continue
		}
		argv := []string{"zxfer", "restore", endpoint.Endpoint{Host: t.At.Host, Name: a.Target}.String(), source.At.String()}
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
	at := source.At
	at.Name = name
	hint := fmt.Sprintf("write source = %q into the job file", at)
	for _, t := range targets {
		a, now := known.Targets[t.Name], t.Target.CopyOf(name, name)
		if a != nil && a.Target != "" && now != "" && a.Target != now {
			hint += "\nrename the copy: " + t.Host.Command("zfs", "rename", a.Target, now)
		}
	}
	return hint
}
