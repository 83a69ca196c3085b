package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// Prune applies the retention of a job without a transfer. With dryRun it only reports what it
// would destroy. Otherwise it refuses a job whose runs or transfers are paused. With beyond, the
// limit of one run does not apply. Otherwise, if any side exceeds the limit, Prune destroys nothing.
func (r *Runner) Prune(ctx context.Context, j *replicate.Job, dryRun, beyond bool) ([]*replicate.Pruning, error) {
	if err := r.standby(j); err != nil {
		return nil, err
	}
	if p, err := statedir.Paused(r.Env.StateDir, j.Name, r.Env.Now()); !dryRun && (err != nil || p.State(r.Env.Now()).Active()) {
		if err == nil {
			err = p.Refusal(j.Name, r.Env.ResumeCommand(j, p), "", session.Stamp)
		}
		return nil, err
	}
	w, unlock, err := r.lockRun(ctx, j, false, "wait until it ends")
	if err != nil {
		return nil, err
	}
	defer unlock()
	w.findDisks(ctx) // first: a command on a suspended pool would hang
	survey, err := w.survey(ctx)
	if err != nil {
		return nil, err
	}
	if err := w.checkRoles(ctx, survey.Root); err != nil {
		return nil, err
	}
	v := &replicate.RunState{Survey: survey, NoLimit: beyond}
	var errs []error
	for _, t := range w.session.Targets {
		if b := w.withoutDisk(t); b != nil {
			w.Env.Log(w.session.Job.Name + ": " + w.disk(t).Skipped())
			v.Targets = append(v.Targets, b.targetState())
			continue
		}
		b := batch{side: t, result: &send.BatchResult{}}
		q := hosts.ListQuery{Recursive: j.Recursive, Versions: true}
		if q.Dataset, b.err = plan.TargetName(v.Root, t.At.Name); b.err == nil {
			listed := w.session.Activity("listing %s", t.At)
			b.result.Target, b.err = t.List(ctx, q)
			listed()
		}
		if b.err != nil {
			errs = append(errs, fmt.Errorf("target %s: %w", t.Name, b.err))
		}
		v.Targets = append(v.Targets, b.targetState())
	}
	all := w.decide(ctx, v).Prunings
	refused := slices.ContainsFunc(all, func(p *replicate.Pruning) bool { return p.Refused })
	for _, p := range all {
		if dryRun {
			w.showHeld(ctx, p, nil)
		} else {
			w.apply(ctx, p, !refused, nil)
		}
		if err := p.Failed(); err != nil && p.Refused {
			errs = append(errs, err)
		} else if err != nil {
			errs = append([]error{err}, errs...) // the first error determines the class
		}
	}
	if !dryRun {
		errs = append(errs, w.session.Store.Save(w.session.State))
	}
	return all, statedir.UsageToFailed(errors.Join(errs...))
}

// prune completes and records the prunings of a run.
func (e *ending) prune(ctx context.Context) (failed error) {
	for _, p := range e.decision.Prunings {
		removed := e.apply(ctx, p, true, e.destroys[p])
		i := slices.IndexFunc(e.session.Targets, func(t *side) bool { return t.Name == p.Side })
		if i < 0 {
			e.run.Pruned += removed
		} else {
			e.run.Targets[i].Pruned += removed
			e.run.Targets[i].Removed += p.Removed
		}
		if n := p.Unsent(); n > 0 {
			e.note("%s on %s keeps %s, because a job of sent_on_by has not sent %s on", p.Rule(), p.Side, english.Plural(n, "snapshot", ""), english.PluralWord(n, "it", "them"))
		}
		if p.Error == "" {
			continue
		}
		e.note("%s on %s: %s", p.Rule(), p.Side, p.Error)
		if i < 0 {
			failed = fault.Failf(p.Hint, "retention on the source: %s", p.Error)
		} else {
			t := e.run.Targets[i]
			t.Outcome, t.Error, t.Hint = outcome.Failed, p.Rule()+": "+p.Error, p.Hint
		}
	}
	if e.bookmarks == nil {
		return failed
	}
	if err := e.bookmarks.result(ctx); err != nil {
		e.note("bookmarks: %v", err)
		return failed
	}
	stale := e.decision.Bookmarks
	e.run.Pruned += len(stale)
	for _, b := range e.jobRun.bookmarks { // of intermediate snapshots, which the run needed only until its streams ended
		if slices.Contains(stale, b.In(b.Dataset)) {
			e.run.Pruned--
		}
	}
	return failed
}

// apply records what retention learned about a side and, with remove, carries out its decision. first
// destroyed the first snapshots; nil = none did. It returns how many snapshots were destroyed.
func (w *jobRun) apply(ctx context.Context, p *replicate.Pruning, remove bool, first *step) int {
	w.session.State.RecordPruning(p)
	if !remove {
		return 0
	}
	began, due := time.Now(), len(p.Remove)
	if first != nil && first.ran {
		began = first.began
	}
	defer w.session.Activity("destroying %s on %s", english.Plural(due, "snapshot", ""), p.Side)()
	destroyed := applyPruning(ctx, w.session.Side(p.Side), p, first)
	p.Removed = w.destroyOrphans(ctx, p)
	if due > 0 && !p.Refused {
		w.Env.Log(fmt.Sprintf("%s: %s destroyed %s on %s in %s", w.session.Job.Name, p.Rule(), english.Plural(destroyed, "snapshot", ""), p.Side, time.Since(began).Round(time.Millisecond)))
	}
	return destroyed
}

// showHeld finds the held snapshots of a pruning, for display.
func (w *jobRun) showHeld(ctx context.Context, p *replicate.Pruning, freed map[string]uint64) {
	defer w.session.Activity("listing holds on %s", p.Side)()
	showHeld(ctx, w.session.Side(p.Side), p, w.expected[p.Side], freed)
}

// showHeld moves the snapshots that are held or have clones from p.Remove to the kept ones, for
// display. Destroying does not need it, since ZFS then names busy snapshots faster. Snapshots in
// coming do not exist yet. freed counts the job's own holds that will have moved.
func showHeld(ctx context.Context, s *side, p *replicate.Pruning, coming map[string]string, freed map[string]uint64) {
	existing := slices.DeleteFunc(slices.Clone(p.Remove), func(n string) bool { return coming[n] != "" })
	if len(existing) == 0 {
		return
	}
	props, err := s.Properties(ctx, existing, "userrefs", "clones")
	if err != nil {
		p.Error = err.Error()
		return
	}
	p.Remove = slices.DeleteFunc(p.Remove, func(n string) bool {
		if coming[n] != "" {
			return false
		}
		of := props[n]
		refs, _ := strconv.ParseUint(of["userrefs"].Value, 10, 64) // always a number for an existing snapshot
		held := refs > freed[n] || strings.Trim(of["clones"].Value, "-") != ""
		if held {
			p.Keep(n)
		}
		return held || of == nil
	})
}

// destroyAtOnce is the number of snapshots that one transaction destroys. It must fit into a
// transaction group together with other activity of the pool. Other sizes were not faster per
// snapshot.
const destroyAtOnce = 1000

// applyPruning destroys p.Remove and returns how many snapshots were destroyed. first destroyed the first ones;
// nil = none did.
func applyPruning(ctx context.Context, s *side, p *replicate.Pruning, first *step) int {
	if p.Error != "" {
		return 0
	}
	var destroyed []string
	for some := range slices.Chunk(p.Remove, destroyAtOnce) {
		var err error
		if first != nil {
			err = first.result(ctx)
		} else {
			err = hosts.Run(ctx, s, hosts.OpDestroy, some)
		}
		first = nil
		done, err := settle(ctx, s, some, err, p)
		destroyed = append(destroyed, done...)
		if err != nil {
			p.Error = err.Error()
			break
		}
	}
	if len(p.Remove) > 0 {
		p.Remove = destroyed
	}
	if p.Error == "" {
		p.Complete()
	}
	return len(destroyed)
}

// destroySnapshots destroys names in one transaction and returns those that were destroyed.
func destroySnapshots(ctx context.Context, s *side, names []string, p *replicate.Pruning) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	return settle(ctx, s, names, hosts.Run(ctx, s, hosts.OpDestroy, names), p)
}

// settle returns which names were destroyed by one transaction that ended with err. A snapshot that is
// held, has clones or is being sent fails the whole transaction: settle keeps it and destroys the others.
// If ZFS does not name it, settle bisects.
func settle(ctx context.Context, s *side, names []string, err error, p *replicate.Pruning) ([]string, error) {
	if err == nil {
		return names, nil
	}
	if !errors.Is(err, &zfs.Error{Kind: zfs.Busy}) {
		return nil, err
	}
	busy := busyOf(err)
	rest := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return busy[n] })
	if len(rest) < len(names) {
		for _, n := range names {
			if busy[n] {
				p.Keep(n)
			}
		}
		return destroySnapshots(ctx, s, rest, p)
	}
	if len(names) == 1 {
		p.Keep(names[0])
		return nil, nil
	}
	a, err := destroySnapshots(ctx, s, names[:len(names)/2], p)
	if err != nil {
		return a, err
	}
	b, err := destroySnapshots(ctx, s, names[len(names)/2:], p)
	return slices.Concat(a, b), err
}

// busyOf returns the subjects of all errors of kind Busy in an error tree.
func busyOf(err error) map[string]bool {
	out := map[string]bool{}
	var walk func(error)
	walk = func(err error) {
		if e, ok := err.(*zfs.Error); ok && e.Kind == zfs.Busy {
			out[e.Subject] = true
		}
		switch u := err.(type) {
		case interface{ Unwrap() error }:
			if inner := u.Unwrap(); inner != nil {
				walk(inner)
			}
		case interface{ Unwrap() []error }:
			for _, inner := range u.Unwrap() {
				walk(inner)
			}
		}
	}
	walk(err)
	return out
}

// destroyOrphans destroys the orphans that are due and returns how many it destroyed. It keeps and
// notes the ones that the host refuses to destroy.
func (w *jobRun) destroyOrphans(ctx context.Context, p *replicate.Pruning) (removed int) {
	if len(p.OrphanRequests) == 0 || p.Error != "" {
		return 0
	}
	defer w.session.Activity("destroying %s on %s", english.Plural(len(p.OrphanRequests), "copy", "copies"), p.Side)()
	left := p.Datasets
	p.Datasets = nil
	for i, g := range p.OrphanRequests {
		err := hosts.Run(ctx, w.session.Side(p.Side), hosts.OpDestroyOrphans, []zfs.Orphan{g})
		switch {
		case err == nil:
			removed++
			p.Datasets = append(p.Datasets, left[i])
			w.session.State.DropOrphan(p.Side, g.Dataset)
			w.Env.Log(w.session.Job.Name + ": " + g.Dataset + " on " + p.Side + " was destroyed, because its original was deleted on the source")
		case fault.ClassOf(err) == fault.Refused && !errors.Is(err, hosts.ErrForbidden):
			w.note("%s: deleted on the source: %v", p.Side, err)
		default:
			p.Error, p.Hint = "deleted on the source: "+err.Error(), fault.HintOf(err)
			return removed
		}
	}
	return removed
}
