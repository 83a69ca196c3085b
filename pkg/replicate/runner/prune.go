package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
)

// Prune applies the retention of a job, without a transfer. With dryRun it
// only says what it would remove. With beyond there is no limit to what one run
// may remove; else, where any side is beyond it, nothing is removed on any.
func (r *Runner) Prune(ctx context.Context, j *replicate.Job, dryRun, beyond bool) ([]*replicate.Pruning, error) {
	w, unlock, err := r.locked(ctx, j, false, "wait for its end")
	if err != nil {
		return nil, err
	}
	defer unlock()
	v, err := w.survey(ctx)
	if err != nil {
		return nil, err
	}
	v.NoLimit = beyond
	var errs []error
	for _, t := range w.targets {
		b := batch{side: t, result: &job.BatchResult{}}
		q := hosts.ListQuery{Recursive: j.Recursive, Versions: true}
		if q.Dataset, b.err = plan.TargetName(v.Root, t.at.Name); b.err == nil {
			listed := w.doing("listing %s", t.at)
			b.result.Target, b.err = t.list(ctx, q)
			listed()
		}
		if b.err != nil {
			errs = append(errs, fmt.Errorf("target %s: %w", t.name, b.err))
		}
		v.Targets = append(v.Targets, b.seen())
	}
	w.lookAside(ctx, v)
	all := w.decide(ctx, v).Prunings
	refused := slices.ContainsFunc(all, func(p *replicate.Pruning) bool { return p.Refused })
	for _, p := range all {
		if dryRun {
			w.showHeld(ctx, p, nil)
		} else {
			w.apply(ctx, p, !refused)
		}
		if err := p.Failed(); err != nil && p.Refused {
			errs = append(errs, err)
		} else if err != nil {
			errs = append([]error{err}, errs...) // the class of the first counts
		}
	}
	if !dryRun {
		errs = append(errs, w.store.Save(w.state))
	}
	return all, statedir.OfJob(errors.Join(errs...))
}

// prune applies retention at the end of a run. What fails makes the run fail,
// though the data did arrive.
func (w *jobRun) prune(ctx context.Context, d *replicate.Decision) (failed error) {
	for _, p := range d.Prunings {
		removed := w.apply(ctx, p, true)
		i := slices.IndexFunc(w.targets, func(t *side) bool { return t.name == p.Side })
		if i < 0 {
			w.run.Pruned += removed
		} else {
			w.run.Targets[i].Pruned += removed
			w.run.Targets[i].Removed += p.Removed
		}
		if p.Error == "" {
			continue
		}
		w.note("%s on %s: %s", p.Rule(), p.Side, p.Error)
		if i < 0 {
			failed = fault.Failf(p.Hint, "retention on the source: %s", p.Error)
		} else {
			t := w.run.Targets[i]
			t.Outcome, t.Error, t.Hint = outcome.Failed, p.Rule()+": "+p.Error, p.Hint
		}
	}
	if len(d.Bookmarks) == 0 {
		return failed
	}
	if err := w.source.do(ctx, func(st hosts.Host) error { return st.Destroy(ctx, d.Bookmarks) }); err != nil {
		w.note("bookmarks: %v", err)
		return failed
	}
	w.run.Pruned += len(d.Bookmarks)
	return failed
}

// apply takes over what retention learnt of a side and, where that is wanted, does
// what it decided. It tells how many snapshots are gone.
func (w *jobRun) apply(ctx context.Context, p *replicate.Pruning, remove bool) int {
	w.state.Learn(p)
	if !remove {
		return 0
	}
	began, due := time.Now(), len(p.Remove)
	defer w.doing("removing %s on %s", english.Plural(due, "snapshot", ""), p.Side)()
	gone := w.side(p.Side).apply(ctx, p)
	p.Removed = w.removeGone(ctx, p)
	if due > 0 && !p.Refused {
		w.Log(fmt.Sprintf("%s: %s removed %s on %s in %s", w.job.Name, p.Rule(), english.Plural(gone, "snapshot", ""), p.Side, time.Since(began).Round(time.Millisecond)))
	}
	return gone
}

// showHeld finds out what of a pruning is held, for showing.
func (w *jobRun) showHeld(ctx context.Context, p *replicate.Pruning, freed map[string]uint64) {
	defer w.doing("asking what is held on %s", p.Side)()
	w.side(p.Side).showHeld(ctx, p, w.coming[p.Side], freed)
}

// hold moves a target's holds, and bookmarks what was sent. What fails is noted:
// the data did arrive.
func (w *jobRun) hold(ctx context.Context, h *replicate.HoldChange) {
	for source, a := range h.Arrivals {
		w.state.Dataset(source).Targets[h.Target] = a
	}
	if err := w.store.Save(w.state); err != nil {
		w.note("%s: no holds were placed: %v", h.Target, err)
		return
	}
	whole := true
	done := func(err error) bool {
		if err != nil {
			whole = false
			w.note("%s: %v", h.Target, err)
		}
		return err == nil
	}
	// Nothing is let go of before the new base is held wherever it is to be.
	tag, target := replicate.Tag(w.job.Name, h.Target), w.side(h.Target)
	defer w.doing("holding and bookmarking what %s has", h.Target)()
	source, err := w.source.place(ctx, tag, h.Source.Place)
	placed := done(err)
	there, err := target.place(ctx, tag, h.There.Place)
	placedThere := done(err)
	if len(h.Bookmarks) > 0 {
		done(during("bookmark", w.source.do(ctx, func(st hosts.Host) error { return st.Bookmark(ctx, h.Bookmarks) })))
	}
	if placed {
		source, err = w.source.release(ctx, tag, h.Source.Drop)
		done(err)
	}
	if placedThere {
		there, err = target.release(ctx, tag, h.There.Drop)
		done(err)
	}
	h.Placed(source, there, whole)
}
