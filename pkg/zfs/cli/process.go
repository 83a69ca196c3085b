package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"zxfer/pkg/zfs"
)

const (
	// termGrace is the time that a child gets to end after SIGTERM.
	termGrace = 3 * time.Second
	// killGrace is the time after SIGKILL before a child is abandoned. A process in a system call
	// on a suspended pool cannot end.
	killGrace = 2 * time.Second
	// ioGrace limits the wait for stderr after the child ended.
	ioGrace = 2 * time.Second
)

// errStuck is the error of a child that survives SIGKILL.
var errStuck = errors.New("zfs does not end because the kernel blocks it")

// process is a running child.
//
// If this process ends, even by kill -9, the kernel signals children that send or that read or
// change metadata (Pdeathsig, see spawner). A receiver gets no signal. It ends because its stdin
// ends, and so saves its resumable state. That works because all other descriptors are
// close-on-exec.
type process struct {
	cmd     *exec.Cmd
	failure zfs.Failure
	stderr  Tail
	done    chan struct{} // closed when the child was reaped or abandoned
	err     error         // valid after done is closed

	mu     sync.Mutex
	reaped bool
}

type start struct {
	tool    string
	args    []string
	failure zfs.Failure // Op and Subject are required
	stdin   *os.File
	stdout  io.Writer // an *os.File is passed to the child directly
	orphan  bool      // ends with its stdin, not by a signal
}

// start starts a child that ends with ctx.
func (c *CLI) start(ctx context.Context, s start) (*process, error) {
	if c.remote != nil {
		return nil, opError(s.failure, errRemote)
	}
	if s.tool == "" {
		s.failure.Stderr = "zfs and zpool were not found in PATH, /usr/sbin or /sbin"
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

// watch ends the child with ctx and sets its error.
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

// signal signals the child's process group. It does nothing after the child was reaped, because its
// number may be reused.
func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		_ = syscall.Kill(-p.cmd.Process.Pid, s) // it may have just ended
	}
}

// wait waits for the end of the child. It returns nil after exit status 0.
func (p *process) wait() error {
	<-p.done
	return p.err
}

func (p *process) exitError(err error) error {
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return nil // exit status 0; another process may keep stderr open
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

// errClosed is returned for children that are started after Close.
var errClosed = errors.New("closed")

// spawner starts children from one locked thread. PR_SET_PDEATHSIG fires when the thread that
// forked ends, not the process, and Go may end any thread (https://go.dev/issue/27505). So children
// that must not outlive this process start here.
type spawner struct {
	start    sync.Once
	requests chan spawnRequest
	closed   chan struct{}
	stop     sync.Once
}

type spawnRequest struct {
	cmd  *exec.Cmd
	done chan error
}

func newSpawner() *spawner {
	return &spawner{requests: make(chan spawnRequest), closed: make(chan struct{})}
}

// run starts cmd on the spawner's thread.
func (s *spawner) run(cmd *exec.Cmd) error {
	s.start.Do(func() { go s.serve() })
	req := spawnRequest{cmd, make(chan error, 1)}
	select {
	case s.requests <- req:
		return <-req.done
	case <-s.closed:
		return errClosed
	}
}

// serve never unlocks its thread. When it returns, the thread ends, and the kernel kills all
// children.
func (s *spawner) serve() {
	runtime.LockOSThread()
	for {
		select {
		case req := <-s.requests:
			req.done <- req.cmd.Start()
		case <-s.closed:
			return
		}
	}
}

func (s *spawner) close() { s.stop.Do(func() { close(s.closed) }) }

// maxStderr limits the kept end of a child's stderr, in bytes.
const maxStderr = 64 << 10

// Tail is a writer that keeps the last maxStderr bytes. Once it has dropped bytes, it returns only
// whole lines.
type Tail struct {
	mu  sync.Mutex
	buf []byte
	cut bool
}

func (t *Tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if over := len(t.buf) - maxStderr; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
		t.cut = true
	}
	return len(b), nil
}

func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.buf
	if t.cut {
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[i+1:]
		}
	}
	return string(b)
}

// zfsOutput runs zfs to its end and returns its output, which is also valid with a *zfs.Error.
func (c *CLI) zfsOutput(ctx context.Context, f zfs.Failure, args []string) (string, error) {
	return c.output(ctx, f, c.zfs, args)
}

func (c *CLI) output(ctx context.Context, f zfs.Failure, tool string, args []string) (string, error) {
	out, _, err := c.outputs(ctx, f, tool, args)
	return out, err
}

// outputs is like output, and also returns standard error.
func (c *CLI) outputs(ctx context.Context, f zfs.Failure, tool string, args []string) (stdout, stderr string, err error) {
	if c.remote != nil {
		return c.outputsRemote(ctx, f, tool, args)
	}
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

// change runs zfs(8) with words followed by the dataset name.
func (c *CLI) change(ctx context.Context, op, dataset string, words ...string) error {
	if _, err := zfs.ParseDataset(dataset); err != nil {
		return err
	}
	_, err := c.zfsOutput(ctx, zfs.Failure{Op: op, Subject: dataset}, append(words, dataset))
	return err
}

// opError wraps errors that are not from ZFS, such as an ended context or a failed fork.
func opError(f zfs.Failure, err error) error {
	what := "zfs " + f.Op
	if f.Subject != "" {
		what += " " + f.Subject
	}
	return fmt.Errorf("%s: %w", what, err)
}

// ignoreMissing ignores the failure of a command if it reports only missing names. zfs processes
// the other names.
func ignoreMissing(err error) error {
	return ignore(err, zfs.NotFound)
}

// ignore ignores the failure of a command if all of its messages have one of the kinds. Otherwise
// it returns an error with the remaining messages.
func ignore(err error, kinds ...zfs.Kind) error {
	var e *zfs.Error
	if !errors.As(err, &e) {
		return err
	}
	var rest []string
	dropped := false
	for line := range strings.Lines(e.Detail) {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
		case slices.Contains(kinds, zfs.Classify(e.Op, line)):
			dropped = true
		default:
			rest = append(rest, line)
		}
	}
	if len(rest) == 0 && slices.Contains(kinds, e.Kind) {
		return nil
	}
	if len(rest) == 0 || !dropped {
		return err
	}
	f := zfs.Failure{Op: e.Op, Subject: e.Subject, Argv: e.Argv, Stderr: strings.Join(rest, "\n"), User: UserName()}
	return f.Err()
}

// localArgv limits the names given to one local command, in bytes. The kernel permits 2 MiB for
// arguments and environment together with a default stack.
const localArgv = 512 << 10

// maxArgv returns the limit of the names given to one command, in bytes.
func (c *CLI) maxArgv() int {
	if c.remote != nil {
		return c.remote.Limits().MaxArgv
	}
	return localArgv
}

// maxArg limits one argument in bytes.
//
// https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/binfmts.h (MAX_ARG_STRLEN)
const maxArg = 128<<10 - 1

// chunks splits names into parts shorter than limit bytes, counting a separator after each name.
func chunks(names []string, limit int) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for len(names) > 0 {
			n, size := 0, 0
			for n < len(names) && (n == 0 || size+len(names[n]) < limit) {
				size += len(names[n]) + 1
				n++
			}
			if !yield(names[:n:n]) {
				return
			}
			names = names[n:]
		}
	}
}

// RemoteRunner runs commands on another host.
type RemoteRunner interface {
	// Host returns the host's name for messages.
	Host() string
	// User returns the user who runs the commands, "" = unknown.
	User() string
	// Hint returns the change on the host that lets a command run whose standard error is not from ZFS, or "".
	Hint(argv []string, stderr string) string
	// Limits returns the limits of the commands.
	Limits() RemoteLimits
	// Run runs a command to its end. The error means that it could not run or that its outcome is
	// unknown. A failed command is not an error.
	Run(ctx context.Context, argv []string) (RunResult, error)
	// OpenSend starts a stream.
	OpenSend(ctx context.Context, s zfs.SendSpec) (Stream, error)
}

// RemoteLimits are the limits of the commands on another host.
type RemoteLimits struct {
	MaxArgv int  // of the names given to one command, in bytes
	NoZpool bool // the host does not permit zpool(8)
}

// RunResult is the outcome of a remote command.
type RunResult struct {
	Stdout string
	Stderr string
	Status int // exit status of a shell: above 128 for a signal
}

// NewRemote returns a CLI that runs its commands on another host. It does not receive streams, and
// everything else that starts a local process also fails.
func NewRemote(e RemoteRunner, log func(string)) *CLI {
	c := New(log)
	c.zfs, c.zpool, c.remote = "zfs", "zpool", e
	return c
}

// errRemote keeps commands for another host from running locally.
var errRemote = errors.New("it cannot run on another host")

func (c *CLI) outputsRemote(ctx context.Context, f zfs.Failure, tool string, args []string) (stdout, stderr string, err error) {
	f.Argv = append([]string{tool}, args...)
	r, err := c.remote.Run(ctx, f.Argv)
	if err != nil {
		return "", "", opError(f, err)
	}
	if r.Status != 0 {
		err = r.Err(f, c.remote)
	}
	return r.Stdout, r.Stderr, err
}

// Err returns the error of a remote command with a nonzero exit status. As of a local command, it keeps only
// the end of the standard error.
func (r RunResult) Err(f zfs.Failure, at RemoteRunner) *zfs.Error {
	var stderr Tail
	_, _ = stderr.Write([]byte(r.Stderr)) // never fails
	f.Stderr, f.User = stderr.String(), at.User()
	if r.Status > 128 {
		f.Signal = syscall.Signal(r.Status - 128).String()
	}
	e := f.Err()
	e.Host = at.Host()
	// Messages of zfs about a dataset start with "cannot".
	if (e.Kind == zfs.Unknown || e.Kind == zfs.Permission) && !strings.Contains("\n"+f.Stderr, "\ncannot ") {
		if hint := at.Hint(f.Argv, f.Stderr); hint != "" {
			e.Hint = hint
		}
	}
	return e
}
