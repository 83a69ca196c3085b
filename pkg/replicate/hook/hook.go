// Package hook runs the commands of a job file before and after a run, and when it fails.
package hook

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

	"zxfer/pkg/printable"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs/cli"
)

const (
	timeout = time.Minute
	// waitDelay is how long a hook may take to end after SIGTERM, and how long its descendants
	// may keep its output open.
	waitDelay = 5 * time.Second
	// tail is the number of bytes of a hook's output that an error shows.
	tail = 2048
)

// Environment returns the variables that a hook gets in addition to zxfer's environment:
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
func Environment(kind string, j *replicate.Job, r *statedir.Run) []string {
	env := []string{
		"ZXFER_HOOK=" + kind, "ZXFER_JOB=" + j.Name, "ZXFER_SOURCE=" + j.Source,
		"ZXFER_STARTED=" + strconv.FormatInt(r.Started.Unix(), 10), "LC_ALL=C",
	}
	if kind != "before" {
		env = append(env, "ZXFER_OUTCOME="+r.Outcome, "ZXFER_ERROR="+printable.Line(r.FirstError()))
	}
	return env
}

// Run runs one hook with rec as JSON on its standard input, unless rec is nil.
func Run(ctx context.Context, h *replicate.Hook, env []string, rec any) error {
	if rec == nil {
		return Pipe(ctx, h, env, nil)
	}
	text, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	return Pipe(ctx, h, env, bytes.NewReader(text))
}

// Pipe runs one hook with some standard input, until it exits or its timeout expires.
func Pipe(ctx context.Context, h *replicate.Hook, env []string, stdin io.Reader) error {
	limit := cmp.Or(time.Duration(h.Timeout), timeout)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out := &cli.Tail{}
	cmd := exec.CommandContext(ctx, h.Command[0], h.Command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = waitDelay
	err := cmd.Run()
	if ctx.Err() != nil && cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // descendants may ignore SIGTERM; the group may be gone
	}
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("it did not end within %s", limit)
	}
	if output := strings.TrimSpace(out.String()); output != "" {
		output = output[max(0, len(output)-tail):]
		return fmt.Errorf("%s: %w: %s", h.Command[0], err, output)
	}
	return fmt.Errorf("%s: %w", h.Command[0], err)
}
