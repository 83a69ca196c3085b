package runner

import (
	"context"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/hook"
)

// hooksBefore runs the hooks before the run.
func hooksBefore(ctx context.Context, p *pass) error {
	for i := range p.s.Job.Before {
		h := &p.s.Job.Before[i]
		err := runHook(ctx, p, h, "before the run", "before", nil)
		switch {
		case err != nil && h.OnFailure == "continue":
			p.journal.Note("hook before the run: %v", err)
		case err != nil:
			return fault.Refusef(`to continue after a failed hook: on_failure = "continue"`, "hook before the run: %w", err)
		}
	}
	return nil
}

// hooksAfter runs the hooks after the run and, if the run failed, the alert. It runs them even if the
// run was interrupted.
func hooksAfter(ctx context.Context, p *pass) {
	run := func(h *replicate.Hook, kind, name string) {
		if err := runHook(context.WithoutCancel(ctx), p, h, name, kind, p.rec); err != nil {
			p.journal.Note("%s: %v", name, err)
		}
	}
	for i := range p.s.Job.After {
		run(&p.s.Job.After[i], "after", "hook after the run")
	}
	if p.s.Job.Alert != nil && !p.rec.Succeeded() {
		run(p.s.Job.Alert, "alert", "alert")
	}
}

// runHook runs one hook with rec as JSON on its standard input, unless rec is nil.
func runHook(ctx context.Context, p *pass, h *replicate.Hook, name, kind string, rec any) error {
	defer p.s.Activity("running %s, %s", h.Command[0], name)()
	return hook.Run(ctx, h, hook.Environment(kind, p.s.Job, p.rec), rec)
}
