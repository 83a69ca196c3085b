package runner

import (
	"context"
	"time"

	"zxfer/pkg/job"
	"zxfer/pkg/replicate"
)

// view is what a run has seen before it was tried to send.
func (w *work) view() *replicate.View {
	return &replicate.View{Job: w.job, Scope: w.scope, State: &w.state.State, Started: w.run.Started, Now: w.Now(),
		Root: w.source.Name, Source: &w.listing, Beyond: w.beyond}
}

// tried is what it has seen after.
func (w *work) tried() *replicate.View {
	v := w.view()
	for _, t := range w.targets {
		v.Targets = append(v.Targets, t.seen())
	}
	return v
}

// decide returns what is to be done now that it was tried to send to all targets.
// What decides about retention and is in no listing is asked for.
func (w *work) decide(ctx context.Context) *replicate.Decision {
	v := w.tried()
	d := replicate.Decide(v)
	if len(d.Ask) > 0 {
		w.ask(ctx, v, d.Ask)
		d = replicate.Decide(v)
	}
	for _, p := range d.Prunings {
		if p.Refused {
			p.Hint = "the job's retention or adopt was changed, or something is wrong; look: " + w.command("prune -n "+w.job.Name) +
				"\nto remove them, once: " + w.command("prune --beyond-limit "+w.job.Name)
		}
	}
	return d
}

// ask asks when adopted snapshots were taken.
func (w *work) ask(ctx context.Context, v *replicate.View, names map[string][]string) {
	v.Created, v.Unasked = map[string]map[string]map[string]time.Time{}, map[string]error{}
	for side, of := range names {
		created, err := w.creations(ctx, side, of)
		if err != nil {
			v.Unasked[side] = err
			continue
		}
		v.Created[side] = created
	}
}

// seen is a target after it was tried.
func (t *targetWork) seen() *replicate.Seen {
	s := &replicate.Seen{Target: t.Target, Failed: t.result == nil || t.run.Error != "", Cut: t.cut}
	if t.result == nil {
		return s
	}
	s.Listing, s.Partial = &t.result.Target, job.Partial(&t.result.Target)
	for _, d := range t.result.Datasets {
		if d.Err == nil && d.There != "" {
			s.Arrived = append(s.Arrived, replicate.Arrived{Source: d.Source, Target: d.Target, Newest: d.Arrive, There: d.There, Sent: d.Steps > 0})
		}
	}
	return s
}

// target is the one of that name, nil for the source's side.
func (w *work) target(name string) *targetWork {
	for _, t := range w.targets {
		if t.Name == name {
			return t
		}
	}
	return nil
}
