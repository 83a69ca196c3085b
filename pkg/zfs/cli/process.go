package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"zxfer/pkg/zfs"
)

const (
	// termGrace is how long a child may take to end after SIGTERM.
	termGrace = 3 * time.Second
	// killGrace is how long one may take after SIGKILL before it is left
	// behind: a process in a system call on a suspended pool cannot die.
	killGrace = 2 * time.Second
	// ioGrace bounds the wait for stderr after the child is gone.
	ioGrace = 2 * time.Second
)

// errStuck tells of a child that even SIGKILL does not end.
var errStuck = errors.New("zfs does not end, the kernel holds it")

// process is one running child.
//
// How it ends with this process, even by kill -9: a sender and whatever only
// reads or changes metadata gets a signal from the kernel (Pdeathsig, see
// spawner); a receiver does not, because the end of its stdin is what makes
// it end by itself, with its resumable state saved. All descriptors but the
// child's own are close-on-exec, so that end does come.
type process struct {
	cmd     *exec.Cmd
	failure zfs.Failure
	stderr  Tail
	done    chan struct{} // closed when the child is reaped or given up
	err     error         // valid after done

	mu     sync.Mutex
	reaped bool
}

type start struct {
	tool    string // path
	args    []string
	failure zfs.Failure // Op and Subject at least
	stdin   *os.File    // nil = /dev/null
	stdout  io.Writer   // an *os.File is handed over as it is
	orphan  bool        // ends by its stdin, not by a signal
}

// start starts a child that ends with ctx.
func (c *CLI) start(ctx context.Context, s start) (*process, error) {
	if c.elsewhere != nil {
		return nil, opError(s.failure, errElsewhere)
	}
	if s.tool == "" {
		s.failure.Stderr = "zfs and zpool were not found on PATH, in /usr/sbin and /sbin"
		e := s.failure.Err()
		e.Kind, e.Hint = zfs.NoZFS, s.failure.Hint(zfs.NoZFS)
		return nil, e
	}
	if err := context.Cause(ctx); err != nil {
		return nil, opError(s.failure, err)
	}
	p := &process{cmd: exec.Command(s.tool, s.args...), failure: s.failure, done: make(chan struct{})}
	p.failure.Argv = p.cmd.Args
	p.cmd.Env = append(os.Environ(), "LC_ALL=C")
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = ioGrace
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s.stdin != nil {
		p.cmd.Stdin = s.stdin
	}
	p.cmd.Stdout = s.stdout
	if !s.orphan {
		p.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if err := c.spawn.run(p.cmd); err != nil {
		return nil, opError(s.failure, err)
	}
	waited := make(chan error, 1)
	go func() {
		err := p.cmd.Wait()
		p.mu.Lock()
		p.reaped = true
		p.mu.Unlock()
		waited <- err
	}()
	go p.watch(ctx, waited)
	return p, nil
}

// watch ends the child with ctx, and settles how it ended.
func (p *process) watch(ctx context.Context, waited <-chan error) {
	defer close(p.done)
	select {
	case err := <-waited:
		p.err = p.exitError(err)
		return
	case <-ctx.Done():
	}
	p.err = opError(p.failure, context.Cause(ctx))
	for _, step := range []struct {
		signal syscall.Signal
		grace  time.Duration
	}{{syscall.SIGTERM, termGrace}, {syscall.SIGKILL, killGrace}} {
		p.signal(step.signal)
		timer := time.NewTimer(step.grace)
		select {
		case <-waited:
			timer.Stop()
			return
		case <-timer.C:
		}
	}
	p.err = fmt.Errorf("%w; %w (process %d)", p.err, errStuck, p.cmd.Process.Pid)
}

// signal signals the child's whole group, unless the child is gone and its
// number may be another's.
func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		_ = syscall.Kill(-p.cmd.Process.Pid, s) // it may be just gone
	}
}

// wait returns when the child is gone: nil if it exited 0.
func (p *process) wait() error {
	<-p.done
	return p.err
}

func (p *process) exitError(err error) error {
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return nil // exit status 0, perhaps with stderr kept open by another
	}
	f := p.failure
	f.Stderr, f.User = p.stderr.String(), UserName()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			f.Signal = ws.Signal().String()
		}
	} else {
		f.Stderr += err.Error()
	}
	e := f.Err()
	if e.Detail == "" {
		e.Detail = err.Error()
	}
	return e
}

// opError wraps what is no failure of ZFS: a context that ended, a fork that
// failed.
func opError(f zfs.Failure, err error) error {
	what := "zfs " + f.Op
	if f.Subject != "" {
		what += " " + f.Subject
	}
	return fmt.Errorf("%s: %w", what, err)
}

// zfsOutput runs zfs to its end and returns what it printed. A run that
// failed returns what it printed too, beside its *zfs.Error.
func (c *CLI) zfsOutput(ctx context.Context, f zfs.Failure, args []string) (string, error) {
	return c.output(ctx, f, c.zfs, args)
}

func (c *CLI) output(ctx context.Context, f zfs.Failure, tool string, args []string) (string, error) {
	if c.elsewhere != nil {
		return c.outputElsewhere(ctx, f, tool, args)
	}
	out, _, err := c.outputs(ctx, f, tool, args)
	return out, err
}

// outputs is output with what was said on standard error, of this host.
func (c *CLI) outputs(ctx context.Context, f zfs.Failure, tool string, args []string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	var out strings.Builder
	p, err := c.start(ctx, start{tool: tool, args: args, failure: f, stdout: &out})
	if err != nil {
		return "", "", err
	}
	err = p.wait()
	var failed *zfs.Error
	if err != nil && !errors.As(err, &failed) {
		return "", "", err // the child may still write to out
	}
	return out.String(), p.stderr.String(), err
}
