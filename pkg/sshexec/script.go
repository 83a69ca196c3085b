package sshexec

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/fault"
)

// Marker lines of a script and its output.
const (
	runWord = "zxfer-run" // the script is complete
	ranWord = "zxfer-ran" // the output of the script follows
)

// launcher reads a script from standard input and runs it once it is complete. Like script, it is
// quoted for any login shell. The script itself runs in the POSIX shell only.
const launcher = `LC_ALL=C; PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"; export LC_ALL PATH; ` +
	`n="$(printf "\n.")"; n="${n%.}"; s=; while IFS= read -r l; do ` +
	`if [ "$l" = ` + runWord + ` ]; then echo; echo ` + ranWord + `; eval "$s"; exit; fi; s="$s$l$n"; done; exit 1`

// zxfer sends a script an empty line on its standard input every beatInterval. A script that gets
// none for BeatTimeout may end.
const (
	beatInterval = 5 * time.Second
	BeatTimeout  = 30 * time.Second
)

// Script is a running script in the POSIX shell of another host, which may lack zxfer. The
// shell reads it from standard input. So it needs no quoting for the login shell, may be longer
// than an argument, and may contain a secret.
type Script struct {
	o     *Options
	p     *process
	stop  func() bool
	cause func() error // error of the ended context, or nil

	out       output
	outputErr error // ErrOutput, errBanner or nil; valid after done is closed
	done      chan struct{}
}

// maxOutput limits the output of a script in bytes: a listing of about 600,000 versions.
const maxOutput = 64 << 20

var ErrOutput = fmt.Errorf("its output is longer than %d bytes", maxOutput)

// ErrNoShell means that the account permits a login but runs no POSIX shell, for example because a
// forced command permits only some commands.
var ErrNoShell = errors.New("no shell ran the script")

var errBanner = fmt.Errorf("%w: the account printed more than %d bytes before", ErrNoShell, maxBanner)

// output collects the output of a script, without earlier output of the login shell.
type output struct {
	b   bytes.Buffer
	ran chan struct{} // closed when the script has started
}

func (o *output) Write(b []byte) (int, error) {
	if o.b.Len()+len(b) > maxOutput {
		return 0, ErrOutput
	}
	_, _ = o.b.Write(b) // never fails
	select {
	case <-o.ran:
	default:
		if _, rest, ran := bytes.Cut(o.b.Bytes(), []byte("\n"+ranWord+"\n")); ran {
			o.b.Next(o.b.Len() - len(rest))
			close(o.ran)
		} else if o.b.Len() > maxBanner {
			return 0, errBanner
		}
	}
	return len(b), nil
}

// Run starts a script, which ends with ctx or with End. Its output is kept in memory. After the
// script, its standard input has only empty lines, and ends when zxfer ends. Run never asks for a
// password, because several scripts may run concurrently; see StartMaster.
func Run(ctx context.Context, o Options, script string) (*Script, error) {
	o.batch = true
	if err := o.checkScript(script); err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Host, err)
	}
	p, err := o.startWith("exec sh -c '"+launcher+"'", &tail{log: func(string) {}, maxLines: scriptLines})
	if err != nil {
		return nil, err
	}
	s := &Script{o: &o, p: p, cause: func() error { return context.Cause(ctx) },
		out: output{ran: make(chan struct{})}, done: make(chan struct{})}
	s.stop = context.AfterFunc(ctx, func() { _ = p.shutdown(quitTimeout) })
	var reading sync.WaitGroup
	reading.Go(func() {
		// The exit status shows whether the output is complete.
		if _, err := io.Copy(&s.out, p.out); errors.Is(err, ErrOutput) || errors.Is(err, errBanner) {
			_ = p.out.Close() // otherwise the host may wait to write more
			s.outputErr = err
			_ = p.shutdown(0)
		}
	})
	go func() {
		<-p.waited
		// Background processes of the script may keep its output open.
		timer := time.AfterFunc(quitTimeout, p.interrupt)
		reading.Wait()
		timer.Stop()
		p.interrupt() // stops the reader and the writer
		close(s.done)
	}()
	go s.feed(script)
	return s, nil
}

func (o *Options) checkScript(script string) error {
	if strings.Contains("\n"+script+"\n", "\n"+runWord+"\n") {
		return fmt.Errorf("%s: a script must not contain the line %q", o.Host, runWord)
	}
	return nil
}

// scriptLines limits the kept lines of a script's standard error. zfs prints one for each unknown
// name.
const scriptLines = 10_000

// feed writes the script and then the empty lines, until the process ends.
func (s *Script) feed(script string) {
	_, err := io.WriteString(s.p, script+"\n"+runWord+"\n")
	beat := time.NewTicker(beatInterval)
	defer beat.Stop()
	for err == nil {
		select {
		case <-beat.C:
			_, err = s.p.Write([]byte("\n"))
		case <-s.p.waited:
			return
		}
	}
}

// Done returns a channel that is closed when the script has ended.
func (s *Script) Done() <-chan struct{} { return s.done }

// End closes the script's standard input and waits for the end of the script. After the timeout it
// ends the remote shell.
func (s *Script) End(timeout time.Duration) { _ = s.p.shutdown(timeout); <-s.done }

// Result waits for the end of the script and returns its standard output, standard error and exit
// status. If the script did not run or its outcome is unknown, it returns an error.
func (s *Script) Result() (stdout []byte, stderr string, status int, err error) {
	<-s.done
	s.stop()
	status = s.p.cmd.ProcessState.ExitCode()
	ran := false
	select {
	case <-s.out.ran:
		ran = true
	default:
	}
	switch {
	case s.outputErr != nil:
		err = s.outputErr
	case status != 0 && s.cause() != nil:
		err = s.cause()
	case s.p.forced.Load():
		err = errors.New("the remote shell did not end, and zxfer killed it")
	case !ran && (bytes.Contains(s.out.b.Bytes(), []byte("\n"+agentWord)) || strings.HasPrefix(s.p.stderr.String(), "zxfer: ")):
		// A forced agent reads the script as a message, and may report an error before its hello.
		err = fault.Refusef("use an account that starts a shell", "the account always starts an agent, which does not run scripts")
	default:
		err = s.p.outcome(ran)
	}
	if err != nil {
		return nil, "", 0, fmt.Errorf("%s: %w", s.o.Host, err)
	}
	return s.out.b.Bytes(), s.p.stderr.text(), status, nil
}

// outcome returns why the exit status of an ended process is not that of the remote command. ran
// reports whether the remote shell read the command. It returns nil if the status is the command's.
func (p *process) outcome(ran bool) error {
	status := p.cmd.ProcessState.ExitCode()
	switch failed := p.failure(); {
	case status < 0 || status == 255 && (!ran || isSSH(p.name)):
		return failed
	case !ran && failed != nil:
		return fmt.Errorf("%w: %w", ErrNoShell, failed)
	case !ran:
		return fmt.Errorf("%w; output: %s", ErrNoShell, cmp.Or(strings.TrimSpace(p.stderr.String()), "nothing"))
	}
	return nil
}
