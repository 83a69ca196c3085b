package runner

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/printable"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs/cli"
)

const (
	hookTimeout = time.Minute
	// hookWaitDelay is how long a hook may take to end after SIGTERM, and how long its descendants
	// may keep its output open.
	hookWaitDelay = 5 * time.Second
	// hookTail is the number of bytes of a hook's output that an error shows.
	hookTail = 2048
)

// HookEnvironment returns the variables that a hook gets in addition to zxfer's environment:
//
//	ZXFER_HOOK     before, after or alert
//	ZXFER_JOB      the job's name
//	ZXFER_SOURCE   its source
//	ZXFER_STARTED  start of the run, seconds since 1970
//	ZXFER_OUTCOME  done, up-to-date, failed, refused or interrupted; not for before
//	ZXFER_ERROR    the first error of the run, its targets or datasets, or ""; not for before.
//	               One printable line; another host may have written it
//	LC_ALL         C
//
// Hooks after the run, and the alert, get the run's record on standard input: one JSON object, as
// "zxfer replicate log --json" prints it.
func HookEnvironment(kind string, j *replicate.Job, r *statedir.Run) []string {
	env := []string{
		"ZXFER_HOOK=" + kind, "ZXFER_JOB=" + j.Name, "ZXFER_SOURCE=" + j.Source,
		"ZXFER_STARTED=" + strconv.FormatInt(r.Started.Unix(), 10), "LC_ALL=C",
	}
	if kind != "before" {
		env = append(env, "ZXFER_OUTCOME="+r.Outcome, "ZXFER_ERROR="+printable.Line(r.FirstError()))
	}
	return env
}

// hooksBefore runs the hooks before the run.
func (w *jobRun) hooksBefore(ctx context.Context) error {
	for i := range w.session.Job.Before {
		h := &w.session.Job.Before[i]
		err := w.hook(ctx, h, "before the run", HookEnvironment("before", w.session.Job, w.run), nil)
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
		if err := w.hook(context.WithoutCancel(ctx), h, name, HookEnvironment(kind, w.session.Job, w.run), w.run); err != nil {
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

// hook runs one hook with rec as JSON on its standard input, unless rec is nil.
func (w *jobRun) hook(ctx context.Context, h *replicate.Hook, name string, env []string, rec any) error {
	defer w.session.Activity("running %s, %s", h.Command[0], name)()
	if rec == nil {
		return runHook(ctx, h, env, nil)
	}
	text, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	return runHook(ctx, h, env, bytes.NewReader(text))
}

// runHook runs one hook until it exits or its timeout expires.
func runHook(ctx context.Context, h *replicate.Hook, env []string, stdin io.Reader) error {
	timeout := cmp.Or(time.Duration(h.Timeout), hookTimeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out := &cli.Tail{}
	cmd := exec.CommandContext(ctx, h.Command[0], h.Command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = hookWaitDelay
	err := cmd.Run()
	if ctx.Err() != nil && cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // descendants may ignore SIGTERM; the group may be gone
	}
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("it did not end within %s", timeout)
	}
	if output := strings.TrimSpace(out.String()); output != "" {
		output = output[max(0, len(output)-hookTail):]
		return fmt.Errorf("%s: %w: %s", h.Command[0], err, output)
	}
	return fmt.Errorf("%s: %w", h.Command[0], err)
}
