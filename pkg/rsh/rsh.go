// Package rsh reaches other hosts through a remote shell, ssh or what the user
// names instead: it starts zxfer's agent there, copies zxfer to a host that
// lacks it, and relays single connections.
//
// It does not speak the agent's protocol; it hands out the way to it.
package rsh

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kballard/go-shellquote"

	"zxfer/pkg/fault"
)

// Options say how a host is reached.
type Options struct {
	Host      string // as typed, may hold "user@"
	Command   string // remote shell with arguments, as a shell would read it; "" = ssh
	Bootstrap bool   // copy this binary to a host that lacks it
	Log       func(string)
}

// closeWithin bounds how long a remote shell may take to end once its input
// was closed: the agent behind it lets its receives save their state first.
const closeWithin = 20 * time.Second

// argv is the remote shell's command line for a remote command.
func (o *Options) argv(remote string) ([]string, error) {
	words := []string{"ssh"}
	if o.Command != "" {
		var err error
		if words, err = shellquote.Split(o.Command); err != nil || len(words) == 0 {
			return nil, fault.Usagef("write it as in a shell, such as -e 'ssh -p 2222'", "remote shell %q cannot be read", o.Command)
		}
	}
	if filepath.Base(words[0]) == "ssh" {
		// Options of the user come first: for ssh, the first value counts.
		words = append(words, "-T", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
			"-o", "ConnectTimeout=20", "-o", "ForwardAgent=no", "-o", "ForwardX11=no", "-o", "ClearAllForwardings=yes", "-e", "none", "--")
	}
	return append(words, o.Host, remote), nil
}

// pipe is a running remote shell: its standard output and input.
type pipe struct {
	host   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    io.ReadCloser
	stderr *tail
	waited chan struct{}
	once   sync.Once
	err    error // of Wait, once waited is closed
}

// start runs a remote command.
//
// The remote shell stays in zxfer's process group, so that it may ask for a
// password on the terminal. A ^C there therefore reaches it too; it is kept
// from that by ignoring the signals in it, as zxfer winds down first and ends
// it by closing its input. Killed, zxfer leaves it with its input at an end.
func (o *Options) start(remote string) (*pipe, error) {
	argv, err := o.argv(remote)
	if err != nil {
		return nil, err
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, fault.Failf("install it, or name another remote shell with -e", "%s: cannot start the remote shell: %w", o.Host, err)
	}
	// sh ignores the signals for what it becomes; they stay ignored over exec.
	cmd := exec.Command("/bin/sh", append([]string{"-c", `trap '' INT QUIT; exec "$@"`, "sh", path}, argv[1:]...)...)
	p := &pipe{host: o.Host, cmd: cmd, stderr: &tail{log: o.Log, host: o.Host}, waited: make(chan struct{})}
	cmd.Stderr = p.stderr
	cmd.WaitDelay = 2 * time.Second
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, p.out = w, r
	err = cmd.Start()
	_ = w.Close() // the child has its own
	if err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("%s: start %s: %w", o.Host, argv[0], err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.waited)
	}()
	return p, nil
}

// CloseWrite ends the program's input.
func (p *pipe) CloseWrite() error { return p.in.Close() }

func (p *pipe) Read(b []byte) (int, error)  { return p.out.Read(b) }
func (p *pipe) Write(b []byte) (int, error) { return p.in.Write(b) }

// Close ends the remote shell by the end of its input, or by force. It returns
// the failure of the remote shell, if it was one, with its own words.
func (p *pipe) Close() error {
	p.once.Do(func() {
		_ = p.in.Close()
		select {
		case <-p.waited:
		case <-time.After(closeWithin):
			_ = p.cmd.Process.Signal(syscall.SIGKILL)
			<-p.waited
		}
		_ = p.out.Close()
	})
	return p.failure()
}

// failure explains how the remote shell ended; nil while it ended well.
func (p *pipe) failure() error {
	var exit *exec.ExitError
	if !errors.As(p.err, &exit) {
		return nil
	}
	said := p.stderr.String()
	name := "remote shell"
	if argv := p.cmd.Args; len(argv) > 4 {
		name = filepath.Base(argv[4])
	}
	status, _ := exit.Sys().(syscall.WaitStatus)
	switch {
	case exit.ExitCode() == exitRefused:
		return fault.Refusef("", "%s", orElse(said, "the other host refused"))
	case status.Signaled():
		return fmt.Errorf("%s was killed by %s", name, status.Signal())
	case exit.ExitCode() == 255 && name == "ssh":
		return fault.Failf("try it by hand: ssh "+p.host+" true", "ssh: %s", orElse(said, "it ended with status 255"))
	}
	return fmt.Errorf("%s ended with status %d: %s", name, exit.ExitCode(), orElse(said, "it said nothing"))
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// tail keeps the last lines of what a remote shell says, and logs them live.
type tail struct {
	log  func(string)
	host string

	mu   sync.Mutex
	line []byte
	kept []string
}

// keptLines bounds what is remembered.
const keptLines = 5

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range b {
		if c != '\n' && len(t.line) < 1024 {
			t.line = append(t.line, c)
			continue
		}
		t.flush()
	}
	return len(b), nil
}

func (t *tail) flush() {
	text := strings.TrimSpace(string(t.line))
	t.line = t.line[:0]
	if text == "" {
		return
	}
	if t.kept = append(t.kept, text); len(t.kept) > keptLines {
		t.kept = t.kept[1:]
	}
	if t.log != nil {
		t.log(t.host + ": " + text)
	}
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flush()
	return strings.Join(t.kept, "; ")
}
