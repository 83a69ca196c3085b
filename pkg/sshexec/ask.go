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

// maxAnswer bounds what Ask reads, in bytes.
const maxAnswer = 1 << 20

// Ask runs a line of a POSIX shell on a host, or where o names none on this one,
// and returns what it prints. Nobody is asked for a password, and when ctx ends
// all that was started here is killed. The line holds no "'".
func Ask(ctx context.Context, o Options, line string) (string, error) {
	text, err := o.ask(ctx, line, maxAnswer, nil)
	return string(text), err
}

// Output is Ask of a host from which more is wanted: at most so many bytes, and how it
// failed, in its own words. A line that ends with another status than 0 did not fail
// where anything was printed.
func Output(ctx context.Context, o Options, line string, most int64) ([]byte, error) {
	said := &tail{log: func(string) {}, keep: keptLines}
	text, err := o.ask(ctx, line, most+1, said)
	var exit *exec.ExitError
	switch {
	case int64(len(text)) > most:
		return nil, fmt.Errorf("it wrote more than %d bytes", most)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err == nil || errors.As(err, &exit) && len(bytes.TrimSpace(text)) > 0:
		return text, nil
	case exit == nil:
		return nil, err
	}
	words, failed := o.words()
	if failed == nil && exit.ExitCode() == 255 && isSSH(words[0]) {
		return nil, fault.Failf("try it by hand: "+shellquote.Join(append(words, o.Host, "true")...), "ssh: %s", cmp.Or(strings.TrimPrefix(said.String(), "ssh: "), "it ended with status 255"))
	}
	hint := ""
	if exit.ExitCode() == exitNotFound {
		hint = "install it there, in the PATH that ssh finds: " + firstWord(line)
	}
	return nil, fault.Failf(hint, "it ended with status %d: %s", exit.ExitCode(), cmp.Or(strings.TrimPrefix(said.String(), "zxfer: "), "it said nothing"))
}

// exitNotFound is a shell's for a command that it does not find.
const exitNotFound = 127

// firstWord is the command of a line.
func firstWord(line string) string {
	word, _, _ := strings.Cut(strings.TrimPrefix(line, "exec "), " ")
	return word
}

func (o *Options) ask(ctx context.Context, line string, most int64, said io.Writer) ([]byte, error) {
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
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with what ssh starts
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Env, cmd.Stderr, cmd.WaitDelay = append(os.Environ(), "LC_ALL=C"), said, quitWithin
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(out, most))
	_ = out.Close() // who has more to say is stopped
	if int64(len(text)) == most {
		_ = cmd.Cancel()
	}
	return text, cmp.Or(err, cmd.Wait())
}
