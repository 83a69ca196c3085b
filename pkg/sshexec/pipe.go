package sshexec

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"
)

// Pipe is a command on another host. Read returns its standard output, Write writes its standard
// input, and Close ends both.
type Pipe struct {
	*process
	o         *Options
	output    *bufio.Reader
	ran       atomic.Bool   // the output of the command follows
	discarded chan struct{} // closed when all output was discarded; nil = the caller reads it
}

// OpenPipe starts a script in the POSIX shell of a host. Standard input and output of the script
// carry data. Like Run, it never asks for a password. ctx limits only the start. The caller ends it with End.
func OpenPipe(ctx context.Context, o Options, script string) (*Pipe, error) {
	if err := o.checkScript(script); err != nil {
		return nil, err
	}
	p, err := openPipe(ctx, o, "exec sh -c '"+launcher+"'")
	if err != nil {
		return nil, err
	}
	p.ran.Store(false)
	// The host may read nothing.
	starting, cancel := context.WithTimeout(ctx, o.connectTimeout())
	stop := context.AfterFunc(starting, p.interrupt)
	// A failed write shows when the pipe is used.
	_, _ = io.WriteString(p.in, script+"\n"+runWord+"\n")
	stop()
	cancel()
	return p, nil
}

// OpenCommand is like OpenPipe for one command line, which the host gets as it is. It also works if
// the account has no POSIX shell.
func OpenCommand(ctx context.Context, o Options, line string) (*Pipe, error) {
	return openPipe(ctx, o, line)
}

func openPipe(ctx context.Context, o Options, remote string) (*Pipe, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Host, err)
	}
	o.batch = true
	p, err := o.startWith(remote, &tail{log: func(string) {}, maxLines: scriptLines})
	if err != nil {
		return nil, err
	}
	c := &Pipe{process: p, o: &o, output: bufio.NewReaderSize(p.out, maxBanner)}
	c.ran.Store(true)
	return c, nil
}

// Discard discards the command's output. The caller does not call Read.
func (p *Pipe) Discard() {
	p.discarded = make(chan struct{})
	go func() {
		defer close(p.discarded)
		_, _ = io.Copy(io.Discard, p) // the exit status shows what happened
	}()
}

// Read returns the command's output, without earlier output of the login shell. After io.EOF,
// Result has the exit status.
func (p *Pipe) Read(b []byte) (int, error) {
	for skipped := 0; !p.ran.Load(); {
		line, err := p.output.ReadSlice('\n')
		if skipped += len(line); err != nil && !errors.Is(err, bufio.ErrBufferFull) || skipped > maxBanner {
			return 0, io.EOF // Result returns the reason
		}
		p.ran.Store(string(line) == ranWord+"\n")
	}
	return p.output.Read(b)
}

// Close makes all reads and writes fail, including current ones. It does not wait for the command.
func (p *Pipe) Close() error {
	p.interrupt()
	return nil
}

// Done returns a channel that is closed when the command has ended.
func (p *Pipe) Done() <-chan struct{} { return p.waited }

// End closes the command's standard input and waits for its end. After the timeout it ends the
// remote shell.
func (p *Pipe) End(timeout time.Duration) { _ = p.shutdown(timeout) }

// Stderr returns the command's standard error so far.
func (p *Pipe) Stderr() string { return p.stderr.text() }

// Result waits for the end of the command and returns its standard error and exit status. If the
// command did not run or its outcome is unknown, it returns an error.
func (p *Pipe) Result() (stderr string, status int, err error) {
	<-p.waited
	if p.discarded != nil {
		timer := time.AfterFunc(quitTimeout, p.interrupt) // background processes may keep the output open
		<-p.discarded
		timer.Stop()
	}
	if p.forced.Load() {
		err = errors.New("the remote shell did not end, and zxfer killed it")
	} else {
		err = p.outcome(p.ran.Load())
	}
	if err != nil {
		return "", 0, fmt.Errorf("%s: %w", p.o.Host, err)
	}
	return p.stderr.text(), p.cmd.ProcessState.ExitCode(), nil
}

// Command runs one command line to its end, as OpenCommand. It returns its output of at most
// maxOutput bytes, its standard error and its exit status.
func Command(ctx context.Context, o Options, line string) (stdout []byte, stderr string, status int, err error) {
	p, err := OpenCommand(ctx, o, line)
	if err != nil {
		return nil, "", 0, err
	}
	stop := context.AfterFunc(ctx, func() { p.End(quitTimeout) })
	defer stop()
	_ = p.CloseWrite() // the command reads nothing
	if stdout, err = io.ReadAll(io.LimitReader(p, maxOutput+1)); len(stdout) > maxOutput {
		p.interrupt() // otherwise the command may wait to write more
	}
	p.End(closeTimeout)
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("%s: %w", o.Host, context.Cause(ctx))
	case len(stdout) > maxOutput:
		err = fmt.Errorf("%s: %w", o.Host, ErrOutput)
	case err == nil:
		stderr, status, err = p.Result()
	}
	return stdout, strings.TrimSpace(stderr), status, err
}
