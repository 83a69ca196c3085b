package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
)

// event returns the kind of runs, as an event of package decide.
func (r *Runner) event() decide.PauseEvent {
	switch {
	case r.IgnorePause:
		return decide.IgnoringRun
	case r.Scheduled:
		return decide.ScheduledRun
	}
	return decide.ManualRun
}

// checkPause returns the pause of a job if it permits only a part of a run, which is the extent.
// It refuses a manual run of a paused job.
func (r *Runner) checkPause(j *replicate.Job) (*decide.Pause, decide.Extent, error) {
	p, err := statedir.Paused(r.Env.StateDir, j.Name, r.Env.Now())
	if err != nil {
		return nil, decide.RunNothing, fmt.Errorf("job %q: %w", j.Name, err)
	}
	state := p.State(r.Env.Now())
	if _, err := state.Next(r.event()); err != nil {
		return nil, decide.RunNothing, p.Refusal(j.Name, r.Env.ResumeCommand(j, p), r.Env.Command("run --ignore-pause "+j.Name), session.Stamp)
	}
	return p, state.Extent(r.event()), nil
}

// skip records a run that did nothing because of a pause.
func (r *Runner) skip(j *replicate.Job, store *statedir.Store, p *decide.Pause) (*statedir.Run, error) {
	now := r.Env.Now().UTC().Truncate(time.Second)
	run := &statedir.Run{Job: j.Name, Source: j.Source, Started: now, Targets: []*statedir.TargetRun{}, Paused: p.Text(session.Stamp), Skipped: true}
	run.Conclude(now, nil, false)
	if err := store.Append(run); err != nil {
		return run, fmt.Errorf("job %q: cannot store its record: %w", j.Name, err)
	}
	return run, nil
}

// heldBatch returns the batch of a target to which a pause or a closed bandwidth window permits no
// transfer, or nil.
func (w *jobRun) heldBatch(t *side) *batch {
	why := ""
	switch {
	case w.only != "" && t.Name != w.only:
		why = "the switch sends only to target " + w.only
	case w.pause != nil:
		why = w.pause.Text(session.Stamp)
	case w.heldAtStart[t.Name] != "":
		why = w.heldAtStart[t.Name]
	case !w.IgnorePause && t.Transfer.ClosedAt(w.Env.Now()):
		why = windowText(t, w.Env.Now())
	default:
		return nil
	}
	return &batch{side: t, result: &send.BatchResult{}, held: why}
}

// windowText describes a closed bandwidth window.
func windowText(t *side, now time.Time) string {
	until, _ := t.Transfer.NextChange(now)
	return "no transfers until " + until.Local().Format("15:04") + " (bandwidth_window)"
}

// windowClosed is the cause of the end of a transfer when a bandwidth window closes at a time.
type windowClosed struct{ at time.Time }

func (*windowClosed) Error() string { return "the bandwidth window closes" }

// untilClosed returns a context that ends when a bandwidth window of the target closes.
func (w *jobRun) untilClosed(ctx context.Context, t *side) (context.Context, context.CancelFunc) {
	closes, any := t.Transfer.NextChange(w.Env.Now())
	if !any || !t.Transfer.ClosedAt(closes) || w.IgnorePause {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(closes.Sub(w.Env.Now()), func() { cancel(&windowClosed{closes}) })
	return ctx, func() { timer.Stop(); cancel(nil) }
}

// hold marks what a closing bandwidth window interrupted as held: the next run resumes it.
func (b *batch) hold(ctx context.Context) {
	var closed *windowClosed
	if !errors.As(context.Cause(ctx), &closed) {
		return
	}
	interrupted := func(err error) bool {
		return err != nil && (fault.ClassOf(err) == fault.Interrupted || errors.Is(err, context.Canceled))
	}
	if interrupted(b.err) {
		b.held, b.err = windowText(b.side, closed.at), nil
		return
	}
	for _, d := range b.result.Datasets {
		if interrupted(d.Err) {
			b.stopped = windowText(b.side, closed.at)
		}
	}
}

// isHeld reports whether the batch did not complete a dataset because of a pause or a window.
func (b *batch) isHeld(err error) bool {
	return b.held != "" || b.stopped != "" && err != nil && outcome.Of(err) == outcome.Interrupted
}
