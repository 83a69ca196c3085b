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
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kballard/go-shellquote"

	"zxfer/pkg/fault"
	"zxfer/pkg/transfer"
)

const (
	// closeTimeout limits how long a remote shell may run after its input was closed. The agent
	// first lets its receives save their state.
	closeTimeout = 20 * time.Second
	// quitTimeout is the same limit before an agent answered, and the limit after a signal.
	quitTimeout = 2 * time.Second
)

// process is a running remote shell. It reads its standard output and writes its standard input.
type process struct {
	name       string // program name without directory
	tryCommand string // command line for a user to try the connection
	cmd        *exec.Cmd
	in         io.WriteCloser
	out        *os.File
	stderr     *tail

	waited chan struct{}
	err    error // of Wait; valid after waited is closed
	ending sync.Once
	forced atomic.Bool   // this process ended it with a signal
	quit   time.Duration // quitTimeout, longer in a test
}

// replaceShell runs a command in place of the shell.
const replaceShell = `exec "$@"`

// untilInputEnds runs a command and ends it at the end of standard input, which zxfer's end causes. The
// command itself reads nothing. After its end nothing signals its number, which may be reused. cleanup is a
// line of shell that runs then. The shell itself writes nothing: if zxfer was killed, a write would kill it
// (SIGPIPE).
func untilInputEnds(cleanup string) string {
	return `exec 9<&0; "$@" </dev/null 9<&- & p=$!; { cat <&9 >/dev/null; kill $p; } 2>/dev/null & w=$!; ` +
		`exec 9<&- 2>/dev/null; wait $p; r=$?; kill $w; ` + cleanup + `; exit $r`
}

// start runs a remote command. run is the local line of shell that runs the remote shell: replaceShell, or
// see untilInputEnds. The shell inherits files as descriptors from 3.
//
// The remote shell runs in zxfer's process group, so that it can ask for a password on the
// terminal: a read from another group stops the reader (SIGTTIN). ^C therefore also reaches the
// remote shell, and so does the end of the terminal (SIGHUP). But zxfer needs the connection to end in good
// order. So the remote shell starts with these signals ignored, and ssh keeps that except during its password
// prompt. A detached one (Options.detached) needs no terminal and runs in its own session.
//
// If zxfer is killed, the remote shell needs no signal: its standard input ends, which ends the
// agent and then the remote shell.
func (o *Options) start(run, remote string, stderr *tail, inherited ...*os.File) (*process, error) {
	argv, err := o.argv(remote)
	if err != nil {
		return nil, err
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, fault.Failf("install it, or name another remote shell: {{rsh}}", "%s: cannot start the remote shell: %w", o.Host, err)
	}
	words, err := o.words()
	if err != nil {
		return nil, err
	}
	// Ignored signals are also ignored after exec.
	cmd := exec.Command("/bin/sh", append([]string{"-c", `trap "" HUP INT QUIT; ` + run, "sh", path}, argv[1:]...)...)
	p := &process{name: filepath.Base(path), tryCommand: o.tryCommand(words), cmd: cmd, stderr: stderr,
		waited: make(chan struct{}), quit: quitTimeout}
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stderr = p.stderr
	cmd.WaitDelay = quitTimeout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: o.detached}
	cmd.ExtraFiles = inherited
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, childOut, err := os.Pipe()
	if err != nil {
		_, _ = childIn.Close(), in.Close()
		return nil, err
	}
	transfer.GrowPipe(in)
	transfer.GrowPipe(out)
	cmd.Stdin, cmd.Stdout, p.in, p.out = childIn, childOut, in, out
	err = cmd.Start()
	_, _ = childIn.Close(), childOut.Close() // the child has copies
	if err != nil {
		p.interrupt()
		return nil, fmt.Errorf("%s: start %s: %w", o.Host, argv[0], err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.waited)
	}()
	return p, nil
}

// CloseWrite closes the program's standard input.
func (p *process) CloseWrite() error { return p.in.Close() }

func (p *process) Write(b []byte) (int, error) { return p.in.Write(b) }

// Close ends the remote shell by closing its input, or by a signal after closeTimeout. It returns
// the failure of the remote shell, if any. It can be called more than once.
func (p *process) Close() error { return p.shutdown(closeTimeout) }

// Leave ends the remote shell immediately. Its command sees the end of its input. Leave does not wait
// for the end, because an ssh that uses a shared connection takes a round trip: the master
// holds its standard error until the other host has closed the session.
func (p *process) Leave() {
	p.forced.Store(true)
	_ = p.in.Close()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	go func() { _ = p.shutdown(0) }()
}

// interrupt makes all reads and writes fail, including current ones.
func (p *process) interrupt() {
	_ = p.in.Close()
	_ = p.out.Close()
}

func (p *process) shutdown(grace time.Duration) error {
	p.ending.Do(func() {
		_ = p.in.Close()
		if !p.waitFor(grace) {
			p.forced.Store(true)
			// On SIGTERM, ssh restores the terminal's echo.
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
			if !p.waitFor(p.quit) {
				_ = p.cmd.Process.Kill()
				<-p.waited
			}
		}
		_ = p.out.Close()
	})
	return p.failure()
}

func (p *process) waitFor(timeout time.Duration) bool {
	select {
	case <-p.waited:
		return true
	case <-time.After(timeout):
		return false
	}
}

// failure returns why the remote shell failed. It returns nil after exit status 0, or if this
// process ended it.
func (p *process) failure() error {
	var exit *exec.ExitError
	if !errors.As(p.err, &exit) || p.forced.Load() {
		return nil
	}
	stderr := p.stderr.String()
	status, _ := exit.Sys().(syscall.WaitStatus)
	switch {
	case exit.ExitCode() == exitRefused:
		return fault.Refusef("let only the account write ~/.cache/zxfer there, or install the same zxfer in its PATH",
			"%s", cmp.Or(stderr, "the other host refused"))
	case status.Signaled():
		return fmt.Errorf("%s was killed: %s", p.name, status.Signal())
	case exit.ExitCode() == 255 && isSSH(p.name):
		return sshFailure(p.tryCommand, stderr)
	}
	return fmt.Errorf("%s: exit status %d: %s", p.name, exit.ExitCode(), cmp.Or(stderr, "no error message"))
}

// tryCommand returns a command line for a user to try the connection. words is the remote shell.
func (o *Options) tryCommand(words []string) string {
	return shellquote.Join(append(words, o.Host, "true")...)
}

// sshFailure returns the error of an ssh that could not connect.
func sshFailure(tryCommand, stderr string) error {
	return fault.Failf("test the connection: "+tryCommand,
		"ssh: %s", cmp.Or(strings.TrimPrefix(stderr, "ssh: "), "exit status 255"))
}

// Limits of the kept standard error of a remote shell.
const (
	tailLines   = 5
	maxTailLine = 1024 // bytes; longer lines are split
)

// tail keeps the last lines of a remote shell's standard error and logs each line. If hold is set,
// it logs the kept lines only on release, because the error of a failed connection contains them.
type tail struct {
	log      func(string)
	maxLines int
	// marker is a line after which the lines before are dropped; "" = none.
	marker string

	mu   sync.Mutex
	hold bool
	line []byte
	kept []string
}

// release logs the held lines, and from now on each line immediately.
func (t *tail) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.hold {
		return
	}
	t.hold = false
	for _, line := range t.kept {
		t.log(line)
	}
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range b {
		if c != '\n' {
			t.line = append(t.line, c)
		}
		if c == '\n' || len(t.line) == maxTailLine {
			t.flush()
		}
	}
	return len(b), nil
}

func (t *tail) flush() {
	text := strings.TrimSpace(string(t.line))
	t.line = t.line[:0]
	switch text {
	case "":
		return
	case t.marker:
		t.kept, t.marker = nil, ""
		return
	}
	if t.kept = append(t.kept, text); len(t.kept) > t.maxLines {
		if t.hold {
			t.log(t.kept[0])
		}
		t.kept = t.kept[1:]
	}
	if !t.hold {
		t.log(text)
	}
}

// String returns the last lines, including an incomplete one, separated by "; ".
func (t *tail) String() string {
	lines := t.lines()
	return strings.Join(lines[max(0, len(lines)-tailLines):], "; ")
}

// text returns all kept lines.
func (t *tail) text() string { return strings.Join(t.lines(), "\n") }

func (t *tail) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flush()
	return t.kept
}

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
		return nil, fmt.Errorf("its output is longer than %d bytes", maxBytes)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err == nil || errors.As(err, &exit) && len(bytes.TrimSpace(text)) > 0:
		return text, nil
	case exit == nil:
		return nil, err
	}
	words, parseErr := o.words()
	if parseErr == nil && exit.ExitCode() == 255 && isSSH(words[0]) {
		return nil, sshFailure(o.tryCommand(words), stderr.String())
	}
	hint := ""
	if exit.ExitCode() == exitNotFound {
		hint = "install it there, in the PATH of ssh commands: " + firstWord(line)
	}
	return nil, fault.Failf(hint, "exit status %d: %s", exit.ExitCode(), cmp.Or(strings.TrimPrefix(stderr.String(), "zxfer: "), "no error message"))
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
