package runner

import (
	"context"
	"slices"
	"sync"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
)

// ending is the work of a run on its sides after the transfers, in this order:
//   - place missing holds and bookmarks on the source
//   - on all targets concurrently: place holds, release holds, destroy snapshots
//   - on the source: release holds, destroy snapshots, destroy bookmarks
//
// So the common snapshot has a hold on both sides before the former one loses its hold on any side.
type ending struct {
	p        *pass
	decision *decision.Decision
	// protected is what the source already has, by target name.
	protected map[string]protected
	holds     []*holdSteps
	// destroys has the first step of each pruning; nil if it has nothing to destroy.
	destroys  map[*decision.Pruning]*step
	bookmarks *step // stale ones to destroy
}

// holdSteps are the steps of one decision.HoldChange. A nil step has nothing to do.
type holdSteps struct {
	change                         *decision.HoldChange
	place, placeOnTarget, bookmark *step
	release, releaseOnTarget       *step
}

// apply carries out the decision of a run, and records it. Its error makes the run fail although the data
// arrived. If the run was interrupted, it only moves the holds that arrived snapshots need.
func apply(ctx context.Context, p *pass, d *decision.Decision, batches []*batch) error {
	e := &ending{p: p, decision: d, protected: map[string]protected{}, destroys: map[*decision.Pruning]*step{}}
	for _, b := range batches {
		e.protected[b.to.Name] = b.protected
	}
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
		if len(d.Bookmarks) > 0 || slices.ContainsFunc(d.Prunings, func(p *decision.Pruning) bool { return len(p.Remove) > 0 }) {
			p.journal.Note("interrupted before retention, which the next run applies")
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
	if len(e.decision.HoldChanges) == 0 {
		return
	}
	if err := e.p.ledger.Expect(func(st *statedir.State) { decision.ExpectHolds(&st.State, e.decision.HoldChanges) }); err != nil {
		for _, h := range e.decision.HoldChanges {
			e.p.journal.Note("%s: cannot place holds: %v", h.Target, err)
		}
		return
	}
	for _, h := range e.decision.HoldChanges {
		tag, held := e.p.s.Job.Tag(h.Target), e.protected[h.Target].holds
		s := &holdSteps{change: h, bookmark: bookmarkStep(h.Bookmarks)}
		s.place, s.placeOnTarget = holdStep(tag, without(h.OnSource.Place, held)), holdStep(tag, h.OnTarget.Place)
		s.release, s.releaseOnTarget = releaseStep(tag, h.OnSource.Drop, s.place), releaseStep(tag, h.OnTarget.Drop, s.placeOnTarget)
		for _, st := range present(s.place, s.placeOnTarget, s.bookmark, s.release, s.releaseOnTarget) {
			st.always = true
		}
		e.holds = append(e.holds, s)
	}
}

// without returns the names that held lacks.
func without(names, held []string) []string {
	has := make(map[string]bool, len(held))
	for _, n := range held {
		has[n] = true
	}
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return has[n] })
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
	e.runOn(ctx, e.p.s.Source, place)
	var targets sync.WaitGroup
	for _, t := range e.p.s.Targets {
		var steps []*step
		for _, h := range e.holds {
			if h.change.Target == t.Name {
				steps = append(steps, present(h.placeOnTarget, h.releaseOnTarget)...)
			}
		}
		targets.Go(func() { e.runOn(ctx, t, append(steps, e.destroysOn(t)...)) })
	}
	targets.Wait()
	e.runOn(ctx, e.p.s.Source, slices.Concat(release, e.destroysOn(e.p.s.Source), present(e.bookmarks)))
}

// destroysOn returns the steps that destroy snapshots of a side.
func (e *ending) destroysOn(s *session.Side) (steps []*step) {
	for _, p := range e.decision.Prunings {
		if e.p.s.Side(p.Side) == s {
			steps = append(steps, present(e.destroys[p])...)
		}
	}
	return steps
}

// runOn runs steps on a side.
func (e *ending) runOn(ctx context.Context, s *session.Side, steps []*step) {
	if len(steps) == 0 {
		return
	}
	activity := "moving holds"
	destroys := func(st *step) bool { return st.change.Op.Name() == hosts.OpDestroy.Name() }
	if slices.ContainsFunc(steps, destroys) {
		activity = "moving holds and applying retention"
	}
	defer e.p.s.Env.ReportTo(e.p.s.Job.Name, s.TargetName()).Activity(e.p.s.Job.Name + ": " + activity + " on " + s.Name)()
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
			e.p.journal.Note("%s: %s: %v", h.change.Target, st.what, st.err)
		}
	}
	e.p.ledger.Confirm(func(*statedir.State) {
		h.change.Placed(slices.Concat(h.place.unheld(), h.release.unheld()), slices.Concat(h.placeOnTarget.unheld(), h.releaseOnTarget.unheld()), whole)
	})
}

// prune completes and records the prunings of a run.
func (e *ending) prune(ctx context.Context) (failed error) {
	for _, p := range e.decision.Prunings {
		if err := recordPruning(e.p, p, prune(ctx, e.p, p, e.destroys[p])); err != nil {
			failed = err
		}
	}
	if e.bookmarks == nil {
		return failed
	}
	if err := e.bookmarks.result(ctx); err != nil {
		e.p.journal.Note("bookmarks: %v", err)
		return failed
	}
	stale := e.decision.Bookmarks
	e.p.rec.Pruned += len(stale)
	for _, done := range e.protected { // of intermediate snapshots, which the run needed only until its streams ended
		for _, b := range done.bookmarks {
			if slices.Contains(stale, b.In(b.Dataset)) {
				e.p.rec.Pruned--
			}
		}
	}
	return failed
}

// recordPruning adds the result of a pruning to the record of the run. It returns an error if the run fails.
func recordPruning(p *pass, of *decision.Pruning, destroyed int) error {
	if n := of.Unsent(); n > 0 {
		p.journal.Note("%s on %s keeps %s, because a job of sent_on_by has not sent %s on", of.Rule(), of.Side, english.Plural(n, "snapshot", ""), english.PluralWord(n, "it", "them"))
	}
	if of.Error != "" {
		p.journal.Note("%s on %s: %s", of.Rule(), of.Side, of.Error)
	}
	i := slices.IndexFunc(p.s.Targets, func(t *session.Side) bool { return t.Name == of.Side })
	if i < 0 {
		p.rec.Pruned += destroyed
		if of.Error != "" {
			return fault.Failf(of.Hint, "retention on the source: %s", of.Error)
		}
		return nil
	}
	t := p.rec.Targets[i]
	t.Pruned += destroyed
	t.Removed += of.Removed
	if of.Error != "" {
		t.Outcome, t.Error, t.Hint = outcome.Failed, of.Rule()+": "+of.Error, of.Hint
	}
	return nil
}
