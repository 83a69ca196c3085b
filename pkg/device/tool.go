package device

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Bounds of what is kept of a tool's output, in bytes.
const (
	mostOutput = 1 << 20
	mostErrors = 4 << 10
)

// runTool runs a tool of the system and returns what it prints. Its error
// carries the command and the tail of what it complained of.
func runTool(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "LVM_SUPPRESS_FD_WARNINGS=1")
	// SIGTERM, not SIGKILL: LVM blocks signals while it has devices suspended,
	// and killed there would leave them so.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	out, complaints := &bounded{most: mostOutput}, &bounded{most: mostErrors}
	cmd.Stdout, cmd.Stderr = out, complaints
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		text := strings.Join(strings.Fields(string(complaints.b)), " ")
		if text != "" {
			return nil, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, text)
		}
		return nil, fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	if out.cut {
		return nil, fmt.Errorf("%s: more than %d bytes of output", strings.Join(cmd.Args, " "), mostOutput)
	}
	return bytes.Clone(out.b), nil
}

// bounded keeps the last bytes written to it.
type bounded struct {
	most int
	b    []byte
	cut  bool
}

func (w *bounded) Write(p []byte) (int, error) {
	w.b = append(w.b, p...)
	if over := len(w.b) - w.most; over > 0 {
		w.b = append(w.b[:0], w.b[over:]...)
		w.cut = true
	}
	return len(p), nil
}
