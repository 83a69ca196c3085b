package runner

import (
	"context"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/hook"
)

// hooksBefore runs the hooks before the run.
func (w *jobRun) hooksBefore(ctx context.Context) error {
	for i := range w.session.Job.Before {
		h := &w.session.Job.Before[i]
		err := w.runHook(ctx, h, "before the run", hook.Environment("before", w.session.Job, w.run), nil)
		switch {
		case err != nil && h.OnFailure == "continue":
			w.note("hook before the run: %v", err)
		case err != nil:
			return fault.Refusef(`to continue after a failed hook: on_failure = "continue"`, "hook before the run: %w", err)
		}
	}
	return nil
}

// hooksAfter runs the hooks after the run and, if the run failed, the alert. It runs them even if the
// run was interrupted.
func (w *jobRun) hooksAfter(ctx context.Context) {
	run := func(h *replicate.Hook, kind, name string) {
		if err := w.runHook(context.WithoutCancel(ctx), h, name, hook.Environment(kind, w.session.Job, w.run), w.run); err != nil {
			w.note("%s: %v", name, err)
		}
	}
	for i := range w.session.Job.After {
		run(&w.session.Job.After[i], "after", "hook after the run")
	}
	if w.session.Job.Alert != nil && !w.run.Succeeded() {
		run(w.session.Job.Alert, "alert", "alert")
	}
}

// runHook runs one hook with rec as JSON on its standard input, unless rec is nil.
func (w *jobRun) runHook(ctx context.Context, h *replicate.Hook, name string, env []string, rec any) error {
	defer w.session.Activity("running %s, %s", h.Command[0], name)()
	return hook.Run(ctx, h, env, rec)
}
