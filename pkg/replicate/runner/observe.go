package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize/english"
	"golang.org/x/sync/errgroup"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// connectHosts connects to the hosts of the run and asks for their facts, while the source is listed. It
// ignores errors, because the first user of a connection reports them. stop cancels the queries and waits.
func connectHosts(ctx context.Context, s *session.Session, held map[string]string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	needed := map[*hosts.Conn]bool{}
	for _, t := range s.Targets {
		if held[t.Name] == "" {
			needed[s.Source.Host], needed[t.Host] = true, true
		}
	}
	var all sync.WaitGroup
	for h := range needed {
		all.Go(func() { _, _ = h.Facts(ctx) })
		all.Go(func() { h.System(ctx) })
	}
	return func() { cancel(); all.Wait() }
}

// partialSurveyShare is the largest share of changed datasets, as 1/n, for which a partial survey pays. A
// partial survey reads the properties of changed datasets twice.
const partialSurveyShare = 4

// observeSource lists the source, without the snapshots of datasets that have not changed since an earlier run. If few
// are unchanged, or that is unknown, it lists everything. It does not ask for the copies of unchanged datasets:
// see recheckUnchanged.
func observeSource(ctx context.Context, p *pass, held map[string]string, cache *statedir.UnchangedCache) (*decision.Survey, error) {
	s := p.s
	// The copies of a held target are not listed.
	if len(held) > 0 || len(cache.Datasets) == 0 || s.Scope.Naming() != nil && !s.Job.Snapshots.SkipUnchanged {
		return survey(ctx, s, p.rec.Started)
	}
	v, err := listSource(ctx, s, p.rec.Started, hosts.ListQuery{Changed: true, NoAncestors: true})
	if err != nil {
		return nil, err
	}
	may := decision.UnchangedSources(v, cache.Datasets)
	if all := len(v.Source.Datasets); (all-len(may))*partialSurveyShare > all {
		return survey(ctx, s, p.rec.Started)
	}
	for _, name := range may {
		v.Unchanged[name] = true
	}
	return relist(ctx, s, v)
}

// survey lists the source with all its snapshots. started names the snapshots of the run.
func survey(ctx context.Context, s *session.Session, started time.Time) (*decision.Survey, error) {
	return listSource(ctx, s, started, hosts.ListQuery{Versions: true, Changed: true})
}

// listSource lists all datasets of the job. If the job skips unchanged datasets, it first writes out pending
// changes, which "written" lacks otherwise.
func listSource(ctx context.Context, s *session.Session, started time.Time, q hosts.ListQuery) (*decision.Survey, error) {
	defer s.Activity("listing %s", s.Source.At)()
	q = wholeSource(s, q)
	if s.Job.Snapshots.SkipUnchanged {
		synced := []hosts.Change{hosts.OpSync.Change(s.Source.At.Name)}
		if found, err := hosts.Call(ctx, s.Source, hosts.OpApply, hosts.ChangeList{Changes: synced, List: &q}); err == nil {
			return surveyOf(ctx, s, started, &found)
		} // for example without the permission of the account for zpool
	}
	found, err := hosts.Call(ctx, s.Source, hosts.OpList, q)
	if err != nil {
		return nil, listError(s, err)
	}
	return surveyOf(ctx, s, started, &found)
}

// wholeSource returns a query for all datasets of the job.
func wholeSource(s *session.Session, q hosts.ListQuery) hosts.ListQuery {
	q.Dataset, q.Recursive, q.User = s.Source.At.Name, s.Job.Recursive, s.Job.UserProperties()
	return q
}

// surveyOf returns the survey of a listing of all datasets of the job.
func surveyOf(ctx context.Context, s *session.Session, started time.Time, l *zfs.Listing) (*decision.Survey, error) {
	if len(l.Datasets) == 0 {
		return nil, sourceMissing(ctx, s)
	}
	v := &decision.Survey{SourceAt: s.Source.Host.At(), Job: s.Job, Scope: s.Scope, State: &s.State.State, Started: started,
		Root: s.Source.At.Name, All: l.Datasets, Source: l, Unchanged: map[string]bool{}}
	v.Choose()
	s.State.FollowRenames(l.Datasets, slices.ContainsFunc(s.Job.Targets, func(t replicate.Target) bool { return t.FollowsRenames() }))
	if len(l.Datasets) == 0 {
		return nil, errAllExcluded(&s.Job.Selection, s.Source, len(v.All))
	}
	return v, nil
}

// recheckUnchanged completes the survey of observeSource with the datasets whose copy on any target has changed.
func recheckUnchanged(ctx context.Context, s *session.Session, v *decision.Survey, cache *statedir.UnchangedCache) (*decision.Survey, error) {
	if len(v.Unchanged) == 0 {
		return v, nil
	}
	looked := s.Activity("inspecting the copies of %s", english.Plural(len(v.Unchanged), "dataset", ""))
	unchanged, err := unchangedCopies(ctx, s, v, cache)
	looked()
	if err != nil { // the batch of the target reports the error
		unchanged = map[string]bool{}
	}
	if len(unchanged) == len(v.Unchanged) {
		return v, nil
	}
	now := *v
	now.Unchanged = unchanged
	return relist(ctx, s, &now)
}

// unchangedCopies returns the datasets in v.Unchanged without a changed copy on any target.
func unchangedCopies(ctx context.Context, s *session.Session, v *decision.Survey, cache *statedir.UnchangedCache) (map[string]bool, error) {
	found := make([]map[string]map[string]zfs.Property, len(s.Targets))
	g, gctx := errgroup.WithContext(ctx)
	for i, t := range s.Targets {
		var copies []string
		for _, n := range v.UnchangedAt(t.Name) {
			copies = append(copies, t.Target.CopyOf(v.Root, n))
		}
		if len(copies) == 0 || t.Target.Disk != nil { // the cache has no entry while a disk is away
			continue
		}
		g.Go(func() (err error) {
			found[i], err = t.Properties(gctx, copies, decision.CopyProperties()...)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	unchanged := maps.Clone(v.Unchanged)
	for i, t := range s.Targets {
		for _, n := range v.UnchangedAt(t.Name) {
			copied := &zfs.Dataset{Properties: found[i][t.Target.CopyOf(v.Root, n)]}
			if t.Target.Disk != nil || cache.Datasets[n].CopyChanged(t.Name, copied, v.State.Copy(n, t.Name)) {
				delete(unchanged, n)
			}
		}
	}
	return unchanged, nil
}

// relistQuery returns the query for the datasets that are not known to be unchanged, with their snapshots. It
// returns false if there are none. The query leaves out the pool and the ancestors if v has them.
func relistQuery(s *session.Session, v *decision.Survey) (q hosts.ListQuery, any bool) {
	q = hosts.ListQuery{Dataset: v.Root, Versions: true, Changed: true, NoAncestors: v.Source.Pool.Name != ""}
	if len(v.Unchanged) == 0 {
		return wholeSource(s, q), true
	}
	for _, d := range v.All {
		if !v.Unchanged[d.Name] && v.Job.Selects(v.Root, d) {
			q.Only = append(q.Only, d.Name)
		}
	}
	return q, len(q.Only) > 0
}

// relist lists the datasets that are not known to be unchanged again, with their snapshots.
func relist(ctx context.Context, s *session.Session, v *decision.Survey) (*decision.Survey, error) {
	q, any := relistQuery(s, v)
	if !any {
		now, none := *v, *v.Source
		now.Source, none.Datasets = &none, nil
		return &now, nil
	}
	what := s.Source.At.String()
	if n := len(q.Only); n > 0 {
		what = english.Plural(n, "dataset", "") + " of " + what
	}
	defer s.Activity("listing %s", what)()
	found, err := hosts.Call(ctx, s.Source, hosts.OpList, q)
	if err != nil {
		return nil, listError(s, err)
	}
	return withListing(ctx, s, v, &q, &found)
}

// withListing returns the survey v with the answer to a relistQuery.
func withListing(ctx context.Context, s *session.Session, v *decision.Survey, q *hosts.ListQuery, found *zfs.Listing) (*decision.Survey, error) {
	now := *v
	if len(q.Only) > 0 {
		now.Source = found
	} else if all, err := surveyOf(ctx, s, v.Started, found); err != nil {
		return nil, err
	} else {
		now = *all
	}
	if q.NoAncestors {
		now.Source.Pool, now.Source.Ancestors = v.Source.Pool, v.Source.Ancestors
	}
	return &now, nil
}

// listError completes the error of a listing of the source.
func listError(s *session.Session, err error) error {
	if !errors.Is(err, &zfs.Error{Kind: zfs.NotFound}) {
		return err
	}
	err = ends.MissingPool(s.Source.Host, s.Source.At.Name, err) // for example after the loss of a host
	if back := restoreHint(s); back != "" {
		err = &fault.Error{Class: fault.ClassOf(err), Hint: fault.HintOf(err) + "\n" + back, Err: err}
	}
	return err
}

// errAllExcluded returns the error for a choice that excludes all datasets.
func errAllExcluded(c *replicate.Selection, source *session.Side, of int) error {
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

// sourceMissing returns the error for a source dataset that does not exist: unknown, renamed or
// destroyed.
func sourceMissing(ctx context.Context, s *session.Session) error {
	source, known := s.Source, s.State.Datasets[s.Source.At.Name]
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
			return fault.Refusef(renameHint(s, known, d.Name), "%s was renamed to %s", where, d.Name)
		}
	}
	hint := "if this is intended, delete the job from the file (its copies are kept)"
	if back := restoreHint(s); back != "" {
		hint = back + "\n" + hint
	}
	return fault.Refusef(hint, "%s was destroyed: pool %s has no dataset with its GUID %d",
		where, pool, known.GUID)
}

// restoreHint returns the commands that restore the source from its copies, or "" if it has none.
func restoreHint(s *session.Session) string {
	known := s.State.Datasets[s.Source.At.Name]
	if known == nil {
		return ""
	}
	var lines []string
	for _, t := range s.Targets {
		a := known.Targets[t.Name]
		if a == nil || a.Target == "" {
			continue
		}
		argv := []string{"zxfer", "restore", endpoint.Endpoint{Host: t.At.Host, Name: a.Target}.String(), s.Source.At.String()}
		if s.Job.Recursive {
			argv = slices.Insert(argv, 2, "-R")
		}
		lines = append(lines, "to restore it: "+zfs.CommandLine(argv))
	}
	return strings.Join(lines, "\n")
}

// renameHint returns a hint how to follow a renamed source. If the name of a copy depends on it,
// the copy must be renamed first.
func renameHint(s *session.Session, known *replicate.DatasetState, name string) string {
	at := s.Source.At
	at.Name = name
	hint := fmt.Sprintf("write source = %q into the job file", at)
	for _, t := range s.Targets {
		a, now := known.Targets[t.Name], t.Target.CopyOf(name, name)
		if a != nil && a.Target != "" && now != "" && a.Target != now {
			hint += "\nrename the copy: " + t.Host.Command("zfs", "rename", a.Target, now)
		}
	}
	return hint
}
