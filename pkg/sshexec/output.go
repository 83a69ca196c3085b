package sshexec

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/kballard/go-shellquote"

	"zxfer/pkg/fault"
)

// maxAnswer limits the output that Ask reads, in bytes.
const maxAnswer = 1 << 20

// Ask runs a line of POSIX shell on a host, or locally if o.Host is "", and returns its output. It
// never asks for a password. When ctx ends, it kills all local processes. line must not contain
// "'".
func Ask(ctx context.Context, o Options, line string) (string, error) {
	text, err := o.ask(ctx, line, maxAnswer, nil)
	return string(text), err
}

// Output is like Ask, with at most maxBytes of output and a detailed error. A nonzero exit status
// is not an error if there is output.
func Output(ctx context.Context, o Options, line string, maxBytes int64) ([]byte, error) {
	stderr := &tail{log: func(string) {}, maxLines: tailLines}
	text, err := o.ask(ctx, line, maxBytes+1, stderr)
	var exit *exec.ExitError
	switch {
	case int64(len(text)) > maxBytes:
		return nil, fmt.Errorf("it wrote more than %d bytes", maxBytes)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err == nil || errors.As(err, &exit) && len(bytes.TrimSpace(text)) > 0:
		return text, nil
	case exit == nil:
		return nil, err
	}
	words, parseErr := o.words()
	if parseErr == nil && exit.ExitCode() == 255 && isSSH(words[0]) {
		return nil, fault.Failf("try it by hand: "+shellquote.Join(append(words, o.Host, "true")...), "ssh: %s", cmp.Or(strings.TrimPrefix(stderr.String(), "ssh: "), "it ended with status 255"))
	}
	hint := ""
	if exit.ExitCode() == exitNotFound {
		hint = "install it there, in the PATH that ssh finds: " + firstWord(line)
	}
	return nil, fault.Failf(hint, "it ended with status %d: %s", exit.ExitCode(), cmp.Or(strings.TrimPrefix(stderr.String(), "zxfer: "), "it said nothing"))
}

// exitNotFound is the exit status of a shell that does not find a command.
const exitNotFound = 127

// firstWord returns the command of a line.
func firstWord(line string) string {
	word, _, _ := strings.Cut(strings.TrimPrefix(line, "exec "), " ")
	return word
}

func (o *Options) ask(ctx context.Context, line string, maxBytes int64, stderr io.Writer) ([]byte, error) {
	line = `PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"; ` + line
	argv := []string{"/bin/sh", "-c", line}
	if o.Host != "" {
		var err error
		o.batch = true
		if argv, err = o.argv("exec sh -c '" + line + "'"); err != nil {
			return nil, err
		}
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // including the children of ssh
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Env, cmd.Stderr, cmd.WaitDelay = append(os.Environ(), "LC_ALL=C"), stderr, quitTimeout
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(out, maxBytes))
	_ = out.Close() // stops a program that writes more
	if int64(len(text)) == maxBytes {
		_ = cmd.Cancel()
	}
	return text, cmp.Or(err, cmd.Wait())
}
