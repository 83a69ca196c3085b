package sshexec

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

// Pipe is a command on another host. Read returns its standard output, Write writes its standard
// input, and Close ends both.
type Pipe struct {
	*process
	o      *Options
	output *bufio.Reader
	before atomic.Int32  // what came before the command's output
	done   chan struct{} // closed when the command and Discard have ended
}

// Values of Pipe.before.
const (
	beforeUnknown = iota
	beforeEnded   // the command's output follows
	beforeEndless // the login shell printed more than maxBanner bytes
	beforeAgent   // an agent answered
)

// OpenPipe starts a script in the POSIX shell of a host. Standard input and output of the script
// carry data. Like Run, it never asks for a password. ctx limits only the start. The caller ends it with End.
func OpenPipe(ctx context.Context, o Options, script string) (*Pipe, error) {
	if strings.Contains("\n"+script+"\n", "\n"+runWord+"\n") {
		return nil, fmt.Errorf("%s: a script must not contain the line %q", o.Host, runWord)
	}
	p, err := openPipe(ctx, o, "exec sh -c '"+launcher+"'", ranWord)
	if err != nil {
		return nil, err
	}
	// The host may read nothing.
	starting, cancel := context.WithTimeout(ctx, o.connectTimeout())
	stop := context.AfterFunc(starting, p.interrupt)
	// A failed write shows when the pipe is used.
	_, _ = io.WriteString(p.in, script+"\n"+runWord+"\n")
	stop()
	cancel()
	return p, nil
}

// OpenCommand is like OpenPipe for one command line, which the host gets unchanged. It also works if
// the account has no POSIX shell.
func OpenCommand(ctx context.Context, o Options, line string) (*Pipe, error) {
	p, err := openPipe(ctx, o, line, "")
	if err == nil {
		p.before.Store(beforeEnded)
	}
	return p, err
}

// openPipe starts a remote command. Its standard error follows the line marker, if that is not "".
func openPipe(ctx context.Context, o Options, remote, marker string) (*Pipe, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Host, err)
	}
	o.batch = true
	p, err := o.start(replaceShell, remote, &tail{log: func(string) {}, maxLines: scriptLines, marker: marker})
	if err != nil {
		return nil, err
	}
	return &Pipe{process: p, o: &o, output: bufio.NewReaderSize(p.out, maxBanner), done: p.waited}, nil
}

// Discard discards the command's output. The caller does not call Read.
func (p *Pipe) Discard() { p.drain(io.Discard) }

// drain copies the command's output to w until the command ends. If w refuses a part, it ends the
// remote shell.
func (p *Pipe) drain(w io.Writer) {
	p.done = make(chan struct{})
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		// The exit status shows whether the output is complete.
		if _, err := io.Copy(w, p); err != nil {
			_ = p.out.Close() // otherwise the host may wait to write more
			_ = p.shutdown(0)
		}
	}()
	go func() {
		defer close(p.done)
		<-p.waited
		p.waitCopied(copied)
		p.interrupt() // ends writes
		<-copied
	}()
}

// waitCopied waits until the output of an ended command is copied. Background processes may keep the
// output open, so it waits only quitTimeout for their output. The command's own may take longer on a busy
// host: it may all be in the pipe.
func (p *Pipe) waitCopied(copied <-chan struct{}) {
	for range closeTimeout / quitTimeout {
		select {
		case <-copied:
			return
		case <-time.After(quitTimeout):
		}
		if !unread(p.out) {
			return
		}
	}
}

// unread reports whether a pipe contains data.
func unread(pipe *os.File) bool {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) // FIONREAD
	return n > 0
}

// KeepAlive sends the command an empty line every beatInterval, until it ends. The caller does not
// call Write.
func (p *Pipe) KeepAlive() {
	go func() {
		beat := time.NewTicker(beatInterval)
		defer beat.Stop()
		for err := error(nil); err == nil; {
			select {
			case <-beat.C:
				_, err = p.Write([]byte("\n"))
			case <-p.waited:
				return
			}
		}
	}()
}

// Read returns the command's output, without earlier output of the login shell. Result returns why no
// output came.
func (p *Pipe) Read(b []byte) (int, error) {
	for skipped := 0; p.before.Load() != beforeEnded; {
		line, err := p.output.ReadSlice('\n')
		switch {
		case string(line) == ranWord+"\n":
			p.before.Store(beforeEnded)
			continue
		case bytes.HasPrefix(line, []byte(agentWord)):
			p.before.Store(beforeAgent)
		}
		if skipped += len(line); skipped > maxBanner {
			p.before.Store(beforeEndless)
			return 0, errBanner
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return 0, io.EOF
		}
	}
	return p.output.Read(b)
}

// Close makes all reads and writes fail, including current ones. It does not wait for the command.
func (p *Pipe) Close() error {
	p.interrupt()
	return nil
}

// Done returns a channel that is closed when the command has ended.
func (p *Pipe) Done() <-chan struct{} { return p.done }

// End closes the command's standard input and waits for its end. After the timeout it ends the
// remote shell.
func (p *Pipe) End(timeout time.Duration) { _ = p.shutdown(timeout); <-p.done }

// Stderr returns the command's standard error so far, without earlier text of the login shell if OpenPipe
// started it.
func (p *Pipe) Stderr() string { return p.stderr.text() }

// Result waits for the end of the command and returns its standard error and exit status. If the
// command did not run or its outcome is unknown, it returns an error.
func (p *Pipe) Result() (stderr string, status int, err error) {
	<-p.done
	before := p.before.Load()
	switch {
	case before == beforeEndless:
		err = errBanner
	case p.forced.Load():
		err = errors.New("the remote shell did not end, and zxfer killed it")
	case before == beforeAgent, before == beforeUnknown && strings.HasPrefix(p.stderr.String(), "zxfer: "):
		// A forced agent reads the script as a message, and may report an error before its hello.
		err = fault.Refusef("use an account that starts a shell",
			"the account always starts an agent, which does not run scripts")
	default:
		err = p.outcome(before == beforeEnded)
	}
	if err != nil {
		return "", 0, fmt.Errorf("%s: %w", p.o.Host, err)
	}
	return p.stderr.text(), p.cmd.ProcessState.ExitCode(), nil
}
