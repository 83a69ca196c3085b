package runner

import (
	"context"

	"zxfer/pkg/job/send"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
)

// Parts does the parts of a run that a switch needs (failover.Runs). No pause and no bandwidth window stops them.
type Parts struct{ Runner *Runner }

func (f Parts) pass(s *session.Session, o order) *pass {
	p := f.Runner.newPass(s, o)
	p.ignoreWindows = true
	return p
}

// Survey lists the source with all versions.
func (f Parts) Survey(ctx context.Context, s *session.Session) (*decision.Survey, error) {
	return survey(ctx, s, f.Runner.Env.Now())
}

// RunTo runs the job of a session once, and sends to one target.
func (f Parts) RunTo(ctx context.Context, s *session.Session, target string) (*statedir.Run, error) {
	return complete(ctx, f.pass(s, order{only: target}))
}

// SendTo sends the snapshots of a survey to the only target of a session. It prunes nothing.
func (f Parts) SendTo(ctx context.Context, s *session.Session, v *decision.Survey) (*send.BatchResult, error) {
	b := sendAll(ctx, f.pass(s, order{}), v, nil, nil, func() error { return nil })[0]
	return b.result, b.err
}
