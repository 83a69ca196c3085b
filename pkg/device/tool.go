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
	// toolTimeout bounds a tool: a drive that fails answers each read after
	// seconds, and a snapshot waits until the file system on the volume is quiet.
	toolTimeout = 60 * time.Second
	// mostErrors bounds what is told of a tool's complaints, in bytes.
	mostErrors = 4 << 10
)

// runTool runs a tool of the system and returns what it prints. Its error
// carries the command and the tail of what it complained of.
func runTool(ctx context.Context, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "LVM_SUPPRESS_FD_WARNINGS=1")
	// SIGTERM, not SIGKILL: LVM blocks signals while it has devices suspended,
	// and killed there would leave them so.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	out, err := cmd.Output() // it keeps a bounded part of stderr
	if err == nil {
		return out, nil
	}
	text := ""
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && len(exit.Stderr) > 0 {
		tail := exit.Stderr[max(0, len(exit.Stderr)-mostErrors):]
		text = ": " + strings.Join(strings.Fields(string(tail)), " ")
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return nil, fmt.Errorf("%s: %w%s", strings.Join(cmd.Args, " "), err, text)
}
