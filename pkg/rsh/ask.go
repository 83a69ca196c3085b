package rsh

import (
	"cmp"
	"context"
	"io"
	"os/exec"
	"syscall"
)

// maxAnswer bounds what Ask reads, in bytes.
const maxAnswer = 1 << 20

// Ask runs a line of a POSIX shell on a host, or where o names none on this one,
// and returns what it prints. Nobody is asked for a password, and when ctx ends
// all that was started here is killed. The line holds no "'".
func Ask(ctx context.Context, o Options, line string) (string, error) {
	line = `PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"; ` + line
	argv := []string{"/bin/sh", "-c", line}
	if o.Host != "" {
		var err error
		o.batch = true
		if argv, err = o.argv("exec sh -c '" + line + "'"); err != nil {
			return "", err
		}
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with what ssh starts
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(out, maxAnswer))
	_ = out.Close() // who has more to say is stopped
	return string(text), cmp.Or(err, cmd.Wait())
}
