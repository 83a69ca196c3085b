package sshexec

import (
	"cmp"
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
)

const (
	// closeWithin bounds how long a remote shell may take to end once its
	// input was closed: the agent behind it lets its receives save their
	// state first.
	closeWithin = 20 * time.Second
	// quitWithin bounds the same where no agent answered yet, and how long it
	// may take to obey a signal.
	quitWithin = 2 * time.Second
)

// process is a running remote shell: its standard output and input.
type process struct {
	name   string // of the program, without directory
	byHand string // the command line with which a user would try it
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    io.ReadCloser
	stderr *tail

	waited chan struct{}
	err    error // of Wait, once waited is closed
	ending sync.Once
	forced atomic.Bool // it was ended by a signal of ours
}

// start runs a remote command.
//
// The remote shell stays in zxfer's process group: it may ask for a password
// on the terminal, and the terminal's driver stops (SIGTTIN) whoever reads it
// from another group. A ^C therefore reaches it too, but zxfer must wind down
// over a connection that still works. So it starts with SIGINT and SIGQUIT
// ignored, which ssh leaves so, but for the time of its password prompt.
//
// It needs no signal to die with its parent: when zxfer is killed, the other
// end of its standard input closes, the agent ends by that, and then it does.
func (o *Options) start(remote string) (*process, error) {
	return o.startWith(remote, &tail{log: o.log, keep: keptLines})
}

func (o *Options) startWith(remote string, stderr *tail) (*process, error) {
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
	// sh ignores the signals for what it becomes; they stay ignored over exec.
	cmd := exec.Command("/bin/sh", append([]string{"-c", `trap "" INT QUIT; exec "$@"`, "sh", path}, argv[1:]...)...)
	p := &process{name: filepath.Base(path), byHand: shellquote.Join(append(words, o.Host, "true")...), cmd: cmd,
		stderr: stderr, waited: make(chan struct{})}
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stderr = p.stderr
	cmd.WaitDelay = quitWithin
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		_ = p.in.Close()
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
func (p *process) CloseWrite() error { return p.in.Close() }

func (p *process) Write(b []byte) (int, error) { return p.in.Write(b) }

// Close ends the remote shell by the end of its input, or after 20 seconds by
// force. It returns the failure of the remote shell, if it was one, with its
// own words. It may be called more than once.
func (p *process) Close() error { return p.end(closeWithin) }

// interrupt fails all reads and writes, those under way too.
func (p *process) interrupt() {
	_ = p.in.Close()
	_ = p.out.Close()
}

func (p *process) end(grace time.Duration) error {
	p.ending.Do(func() {
		_ = p.in.Close()
		if !p.ends(grace) {
			p.forced.Store(true)
			// Asked so, ssh gives the terminal its echo back.
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
			if !p.ends(quitWithin) {
				_ = p.cmd.Process.Kill()
				<-p.waited
			}
		}
		_ = p.out.Close()
	})
	return p.failure()
}

func (p *process) ends(within time.Duration) bool {
	select {
	case <-p.waited:
		return true
	case <-time.After(within):
		return false
	}
}

// failure explains how the remote shell ended; nil if it ended well, or because
// it was told to.
func (p *process) failure() error {
	var exit *exec.ExitError
	if !errors.As(p.err, &exit) || p.forced.Load() {
		return nil
	}
	said := p.stderr.String()
	status, _ := exit.Sys().(syscall.WaitStatus)
	switch {
	case exit.ExitCode() == exitRefused:
		return fault.Refusef("zxfer is kept in ~/.cache/zxfer there (or in XDG_CACHE_HOME, or in /tmp/zxfer-UID), which only the account may write; or install the same zxfer in its PATH",
			"%s", cmp.Or(said, "the other host refused"))
	case status.Signaled():
		return fmt.Errorf("%s was killed: %s", p.name, status.Signal())
	case exit.ExitCode() == 255 && isSSH(p.name):
		return fault.Failf("try it by hand: "+p.byHand, "ssh: %s", cmp.Or(strings.TrimPrefix(said, "ssh: "), "it ended with status 255"))
	}
	return fmt.Errorf("%s ended with status %d: %s", p.name, exit.ExitCode(), cmp.Or(said, "it said nothing"))
}
