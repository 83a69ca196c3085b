package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zxfer/pkg/fault"
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

// withheld returns the targets to which a pause, a switch to another target or a closed bandwidth window permits no
// transfer, with the reason. Targets in before stay held if their window opens, because the run has not
// checked their roles.
func withheld(p *pass, before map[string]string) map[string]string {
	held := map[string]string{}
	for _, t := range p.s.Targets {
		switch {
		case p.order.only != "" && t.Name != p.order.only:
			held[t.Name] = "the switch sends only to target " + p.order.only
		case p.order.pause != nil:
			held[t.Name] = p.order.pause.Text(session.Stamp)
		case before[t.Name] != "":
			held[t.Name] = before[t.Name]
		case !p.ignoreWindows && t.Transfer.ClosedAt(p.s.Env.Now()):
			held[t.Name] = windowText(t, p.s.Env.Now())
		}
	}
	return held
}

// reachable returns the targets that are not held.
func reachable(s *session.Session, held map[string]string) (all []*session.Side) {
	for _, t := range s.Targets {
		if held[t.Name] == "" {
			all = append(all, t)
		}
	}
	return all
}

// windowText describes a closed bandwidth window.
func windowText(t *session.Side, now time.Time) string {
	until, _ := t.Transfer.NextChange(now)
	return "no transfers until " + until.Local().Format("15:04") + " (bandwidth_window)"
}

// windowClosed is the cause of the end of a transfer when a bandwidth window closes at a time.
type windowClosed struct{ at time.Time }

func (*windowClosed) Error() string { return "the bandwidth window closes" }

// untilClosed returns a context that ends when a bandwidth window of the target closes.
func untilClosed(ctx context.Context, p *pass, t *session.Side) (context.Context, context.CancelFunc) {
	closes, any := t.Transfer.NextChange(p.s.Env.Now())
	if !any || !t.Transfer.ClosedAt(closes) || p.ignoreWindows {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(closes.Sub(p.s.Env.Now()), func() { cancel(&windowClosed{closes}) })
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
		b.held, b.err = windowText(b.to, closed.at), nil
		return
	}
	for _, d := range b.result.Datasets {
		if interrupted(d.Err) {
			b.stopped = windowText(b.to, closed.at)
		}
	}
}

// isHeld reports whether the batch did not complete a dataset because of a pause or a window.
func (b *batch) isHeld(err error) bool {
	return b.held != "" || b.stopped != "" && err != nil && outcome.Of(err) == outcome.Interrupted
}
