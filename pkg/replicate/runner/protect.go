package runner

import (
	"context"
	"slices"

	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
)

// protect prepares the source for the streams of a plan, so that the next run can continue from
// everything that they bring, also if this process is killed: it records the plan, holds the
// snapshots that an interrupted receive would need, and bookmarks the snapshots that may become
// incremental sources. If a host refuses, the end of the run tries again and notes the error.
func (w *jobRun) protect(ctx context.Context, t *side, v *replicate.Survey, p *plan.Plan) {
	s := v.StepsOf(p)
	w.savePlan(t.name, p, s)
	defer w.reporter(w.job.Name, t.name).Activity(w.job.Name + ": placing holds and bookmarks before sending to " + t.name)()
	tag := replicate.Tag(w.job.Name, t.name)
	unheld, err := w.source.place(ctx, tag, s.Hold)
	w.shared.Lock()
	if err == nil {
		w.held[tag] = append(w.held[tag], s.Hold...)
	}
	w.state.Unheld(t.name, unheld)
	w.shared.Unlock()
	if len(s.Bookmarks) == 0 {
		return
	}
	if err := hosts.Run(ctx, w.source, hosts.OpBookmark, s.Names()); err != nil {
		return
	}
	w.shared.Lock()
	defer w.shared.Unlock()
	w.bookmarks = append(w.bookmarks, s.Bookmarks...)
}

// savePlan saves the streams of a plan in the state. If the target is unreachable after an
// interruption, the source must keep all snapshots that the target may have received.
func (w *jobRun) savePlan(target string, p *plan.Plan, s *replicate.Steps) {
	w.shared.Lock()
	defer w.shared.Unlock()
	for _, d := range p.Datasets {
		if len(d.Steps) > 0 {
			w.state.Copy(d.Source, target).Sending = d.Final.CreateTXG
		}
		if a := d.Rename; a != nil {
			w.state.AddDiverged(replicate.DivergedCopy{Target: target, Dataset: d.Target, As: a.As, GUID: a.GUID, Since: w.run.Started})
		}
	}
	w.state.MayHold(target, s.Hold)
	if err := w.store.Save(w.state); err != nil {
		w.note("%s: cannot record the current transfers: %v", target, err)
	}
}

// placeRest places the holds that protect has not placed. It returns the names that certainly have
// no hold.
func (w *jobRun) placeRest(ctx context.Context, tag string, names []string) ([]string, error) {
	held := make(map[string]bool, len(w.held[tag]))
	for _, n := range w.held[tag] {
		held[n] = true
	}
	return w.source.place(ctx, tag, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return held[n] }))
}
