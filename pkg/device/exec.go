package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	// toolTimeout limits the run time of a tool. Failing drives take seconds per
	// read, and a snapshot waits until the file system is frozen.
	toolTimeout = 60 * time.Second
	// maxStderr limits the error output in messages, in bytes.
	maxStderr = 4 << 10
)

// runTool runs a system tool and returns its output. Errors include the command and
// the end of its error output.
func runTool(ctx context.Context, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "LVM_SUPPRESS_FD_WARNINGS=1")
	// LVM blocks signals while devices are suspended. SIGKILL would leave them
	// suspended.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	out, err := cmd.Output() // captures a limited part of stderr
	if err == nil {
		return out, nil
	}
	text := ""
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && len(exit.Stderr) > 0 {
		tail := exit.Stderr[max(0, len(exit.Stderr)-maxStderr):]
		text = ": " + strings.Join(strings.Fields(string(tail)), " ")
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return nil, fmt.Errorf("%s: %w%s", strings.Join(cmd.Args, " "), err, text)
}
