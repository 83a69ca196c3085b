package runner

import (
	"context"

	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
)

// protected are the holds and bookmarks on the source for the streams of a batch.
type protected struct {
	holds     []string // full names of snapshots
	bookmarks []decision.StepBookmark
}

// protect prepares the source for the streams of a plan, so that the next run can continue from
// everything that they bring, also if this process is killed: it records the plan, holds the
// snapshots that an interrupted receive would need, and bookmarks the snapshots that may become
// incremental sources. If a host refuses, the end of the run tries again and notes the error.
func protect(ctx context.Context, p *pass, t *session.Side, v *decision.Survey, planned *plan.Plan) (done protected) {
	if planned.Steps() == 0 {
		return done
	}
	s := v.StepsOf(planned)
	expectStreams(p, t.Name, planned, s)
	defer p.s.Env.ReportTo(p.s.Job.Name, t.Name).Activity(p.s.Job.Name + ": placing holds and bookmarks before sending to " + t.Name)()
	hold, bookmark := holdStep(p.s.Job.Tag(t.Name), s.Hold), bookmarkStep(s.Names())
	runSteps(ctx, p.s.Source, present(hold, bookmark))
	p.ledger.Confirm(func(st *statedir.State) { st.Unheld(t.Name, hold.unheld()) })
	if hold.done() {
		done.holds = s.Hold
	}
	if bookmark.done() {
		done.bookmarks = s.Bookmarks
	}
	return done
}

// expectStreams saves the streams of a plan in the state. If the target is unreachable after an
// interruption, the source must keep all snapshots that the target may have received.
func expectStreams(p *pass, target string, planned *plan.Plan, s *decision.Steps) {
	err := p.ledger.Expect(func(st *statedir.State) {
		for _, d := range planned.Datasets {
			if len(d.Steps) > 0 {
				st.Copy(d.Source, target).Sending = d.Final.CreateTXG
			}
			if a := d.Rename; a != nil {
				st.AddDiverged(replicate.DivergedCopy{Target: target, Dataset: d.Target, As: a.As, GUID: a.GUID, Since: p.rec.Started})
			}
		}
		st.MayHold(target, s.Hold)
	})
	if err != nil {
		p.journal.Note("%s: cannot record the current transfers: %v", target, err)
	}
}
