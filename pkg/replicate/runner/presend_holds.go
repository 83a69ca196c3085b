package runner

import (
	"context"
	"slices"

	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
)

// protect prepares the source for the streams of a plan, so that the next run can continue from
// everything that they bring, also if this process is killed: it records the plan, holds the
// snapshots that an interrupted receive would need, and bookmarks the snapshots that may become
// incremental sources. If a host refuses, the end of the run tries again and notes the error.
func (w *jobRun) protect(ctx context.Context, t *side, v *replicate.Survey, p *plan.Plan) {
	s := v.StepsOf(p)
	w.savePlan(t.Name, p, s)
	defer w.Env.ReportTo(w.session.Job.Name, t.Name).Activity(w.session.Job.Name + ": placing holds and bookmarks before sending to " + t.Name)()
	tag := replicate.Tag(w.session.Job.Name, t.Name)
	hold, bookmark := holdStep(tag, s.Hold), bookmarkStep(s.Names())
	runSteps(ctx, w.session.Source, present(hold, bookmark))
	w.shared.Lock()
	defer w.shared.Unlock()
	if hold.done() {
		w.held[tag] = append(w.held[tag], s.Hold...)
	}
	w.session.State.Unheld(t.Name, hold.unheld())
	if bookmark.done() {
		w.bookmarks = append(w.bookmarks, s.Bookmarks...)
	}
}

// savePlan saves the streams of a plan in the state. If the target is unreachable after an
// interruption, the source must keep all snapshots that the target may have received.
func (w *jobRun) savePlan(target string, p *plan.Plan, s *replicate.Steps) {
	w.shared.Lock()
	defer w.shared.Unlock()
	for _, d := range p.Datasets {
		if len(d.Steps) > 0 {
			w.session.State.Copy(d.Source, target).Sending = d.Final.CreateTXG
		}
		if a := d.Rename; a != nil {
			w.session.State.AddDiverged(replicate.DivergedCopy{Target: target, Dataset: d.Target, As: a.As, GUID: a.GUID, Since: w.run.Started})
		}
	}
	w.session.State.MayHold(target, s.Hold)
	if err := w.session.Store.Save(w.session.State); err != nil {
		w.note("%s: cannot record the current transfers: %v", target, err)
	}
}

// notHeld returns the snapshots on which protect has not placed a hold.
func (w *jobRun) notHeld(tag string, names []string) []string {
	held := make(map[string]bool, len(w.held[tag]))
	for _, n := range w.held[tag] {
		held[n] = true
	}
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return held[n] })
}
