package runner

import (
	"context"
	"slices"
	"sync"

	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
)

// ending is the work of a run on its sides after the transfers, in this order:
//   - place missing holds and bookmarks on the source
//   - on all targets concurrently: place holds, release holds, destroy snapshots
//   - on the source: release holds, destroy snapshots, destroy bookmarks
//
// So the common snapshot has a hold on both sides before the former one loses its hold on any side.
type ending struct {
	*jobRun
	decision *replicate.Decision
	holds    []*holdSteps
	// destroys has the first step of each pruning; nil if it has nothing to destroy.
	destroys  map[*replicate.Pruning]*step
	bookmarks *step // stale ones to destroy
}

// holdSteps are the steps of one replicate.HoldChange. A nil step has nothing to do.
type holdSteps struct {
	change                         *replicate.HoldChange
	place, placeOnTarget, bookmark *step
	release, releaseOnTarget       *step
}

// finish carries out the decision of a run. Its error makes the run fail although the data arrived. If
// the run was interrupted, it only moves the holds that arrived snapshots need.
func (w *jobRun) finish(ctx context.Context, d *replicate.Decision) error {
	e := &ending{jobRun: w, decision: d, destroys: map[*replicate.Pruning]*step{}}
	e.planHolds()
	prunes := ctx.Err() == nil
	if prunes {
		e.planDestroys()
	}
	e.work(ctx)
	for _, h := range e.holds {
		e.recordHolds(h)
	}
	if !prunes || ctx.Err() != nil && !e.destroyed() {
		if len(d.Bookmarks) > 0 || slices.ContainsFunc(d.Prunings, func(p *replicate.Pruning) bool { return len(p.Remove) > 0 }) {
			e.note("interrupted before retention, which the next run applies")
		}
		return nil
	}
	return e.prune(ctx)
}

// destroyed reports whether a step has destroyed something.
func (e *ending) destroyed() bool {
	ran := e.bookmarks != nil && e.bookmarks.ran
	for _, st := range e.destroys {
		ran = ran || st != nil && st.ran
	}
	return ran
}

// planHolds saves the new bases and plans the changes of holds. Without the saved bases, a crash would
// leave holds that the next run does not know.
func (e *ending) planHolds() {
	for _, h := range e.decision.HoldChanges {
		for source, a := range h.Copies {
			e.session.State.Dataset(source).Targets[h.Target] = a
		}
	}
	if len(e.decision.HoldChanges) == 0 {
		return
	}
	if err := e.session.Store.Save(e.session.State); err != nil {
		for _, h := range e.decision.HoldChanges {
			e.note("%s: cannot place holds: %v", h.Target, err)
		}
		return
	}
	for _, h := range e.decision.HoldChanges {
		tag := replicate.Tag(e.session.Job.Name, h.Target)
		s := &holdSteps{change: h, bookmark: bookmarkStep(h.Bookmarks)}
		s.place, s.placeOnTarget = holdStep(tag, e.notHeld(tag, h.OnSource.Place)), holdStep(tag, h.OnTarget.Place)
		s.release, s.releaseOnTarget = releaseStep(tag, h.OnSource.Drop, s.place), releaseStep(tag, h.OnTarget.Drop, s.placeOnTarget)
		for _, st := range present(s.place, s.placeOnTarget, s.bookmark, s.release, s.releaseOnTarget) {
			st.always = true
		}
		e.holds = append(e.holds, s)
	}
}

// planDestroys plans the first destruction on each side. Its result decides about the others.
func (e *ending) planDestroys() {
	for _, p := range e.decision.Prunings {
		if p.Error == "" {
			e.destroys[p] = destroyStep(p.Remove[:min(len(p.Remove), destroyAtOnce)])
		}
	}
	e.bookmarks = destroyStep(e.decision.Bookmarks)
}

// work runs the steps.
func (e *ending) work(ctx context.Context) {
	var place, release []*step
	for _, h := range e.holds {
		place, release = append(place, present(h.place, h.bookmark)...), append(release, present(h.release)...)
	}
	e.runOn(ctx, e.session.Source, place)
	var targets sync.WaitGroup
	for _, t := range e.session.Targets {
		var steps []*step
		for _, h := range e.holds {
			if h.change.Target == t.Name {
				steps = append(steps, present(h.placeOnTarget, h.releaseOnTarget)...)
			}
		}
		targets.Go(func() { e.runOn(ctx, t, append(steps, e.destroysOn(t)...)) })
	}
	targets.Wait()
	e.runOn(ctx, e.session.Source, slices.Concat(release, e.destroysOn(e.session.Source), present(e.bookmarks)))
}

// destroysOn returns the steps that destroy snapshots of a side.
func (e *ending) destroysOn(s *side) (steps []*step) {
	for _, p := range e.decision.Prunings {
		if e.session.Side(p.Side) == s {
			steps = append(steps, present(e.destroys[p])...)
		}
	}
	return steps
}

// runOn runs steps on a side.
func (e *ending) runOn(ctx context.Context, s *side, steps []*step) {
	if len(steps) == 0 {
		return
	}
	activity := "moving holds"
	destroys := func(st *step) bool { return st.change.Op.Name() == hosts.OpDestroy.Name() }
	if slices.ContainsFunc(steps, destroys) {
		activity = "moving holds and applying retention"
	}
	defer e.Env.ReportTo(e.session.Job.Name, s.TargetName()).Activity(e.session.Job.Name + ": " + activity + " on " + s.Name)()
	runSteps(ctx, s, steps)
}

// recordHolds records the result of moved holds. It only notes errors, because the data arrived.
func (e *ending) recordHolds(h *holdSteps) {
	whole := true
	for _, st := range []struct {
		what string
		*step
	}{{"hold", h.place}, {"hold", h.placeOnTarget}, {"bookmark", h.bookmark}, {"release", h.release}, {"release", h.releaseOnTarget}} {
		if !st.step.failed() {
			continue
		}
		whole = false
		if st.err != nil {
			e.note("%s: %s: %v", h.change.Target, st.what, st.err)
		}
	}
	h.change.Placed(slices.Concat(h.place.unheld(), h.release.unheld()), slices.Concat(h.placeOnTarget.unheld(), h.releaseOnTarget.unheld()), whole)
}
