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

// Lines of a script on its way to another host and of the answer.
const (
	runWord = "zxfer-run" // the script is whole
	ranWord = "zxfer-ran" // what follows is the script's output
)

// launcher reads a script from standard input and runs it. It is quoted for
// any login shell, like script; the script itself meets the POSIX shell only.
// Nothing of a script runs unless all of it arrived.
const launcher = `LC_ALL=C; PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"; export LC_ALL PATH; ` +
	`n="$(printf "\n.")"; n="${n%.}"; s=; while IFS= read -r l; do ` +
	`if [ "$l" = ` + runWord + ` ]; then echo; echo ` + ranWord + `; eval "$s"; exit; fi; s="$s$l$n"; done; exit 1`

// Beats tell a script on its standard input, by an empty line, that zxfer is
// there. A script that hears none for BeatTimeout may end.
const (
	beatEvery   = 5 * time.Second
	BeatTimeout = 30 * time.Second
)

// Script is a script that runs in a POSIX shell of another host, where zxfer
// need not be. It goes there on the shell's standard input: so it is quoted for
// that shell alone, whatever the account's own is, may be longer than an
// argument, and may hold a secret.
type Script struct {
	o     *Options
	p     *process
	stop  func() bool
	cause func() error // of the context's end, nil while it lasts

	out    output
	excess error // ErrOutput, once done is closed
	done   chan struct{}
}

// maxOutput bounds what a script may write, in bytes: a listing of some 600,000
// versions.
const maxOutput = 64 << 20

var ErrOutput = fmt.Errorf("it wrote more than %d bytes", maxOutput)

// output is what a script writes, without what a login shell printed before.
type output struct {
	b   bytes.Buffer
	ran chan struct{} // closed when the script began
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
		} else if o.b.Len() > maxNoise {
			o.b.Next(o.b.Len() - maxNoise)
		}
	}
	return len(b), nil
}

// Run starts a script, which ends with ctx or with End. What it writes is kept
// in memory. After the script, its standard input brings beats and ends when
// zxfer does. Nobody is asked for a password, as several scripts may run at
// once: see Hold.
func Run(ctx context.Context, o Options, script string) (*Script, error) {
	o.batch = true
	return run(ctx, o, script)
}

func run(ctx context.Context, o Options, script string) (*Script, error) {
	if strings.Contains("\n"+script+"\n", "\n"+runWord+"\n") {
		return nil, fmt.Errorf("%s: a script may not hold the line %q", o.Host, runWord)
	}
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Host, err)
	}
	p, err := o.startWith("exec sh -c '"+launcher+"'", &tail{log: func(string) {}, keep: scriptLines})
	if err != nil {
		return nil, err
	}
	s := &Script{o: &o, p: p, cause: func() error { return context.Cause(ctx) },
		out: output{ran: make(chan struct{})}, done: make(chan struct{})}
	s.stop = context.AfterFunc(ctx, func() { _ = p.end(quitWithin) })
	var reading sync.WaitGroup
	reading.Go(func() {
		// How the process ended tells whether it is all.
		if _, err := io.Copy(&s.out, p.out); errors.Is(err, ErrOutput) {
			s.excess = err
			_ = p.end(0)
		}
	})
	go func() {
		<-p.waited
		// What it started may keep its output open, but has nothing to say.
		timer := time.AfterFunc(quitWithin, p.interrupt)
		reading.Wait()
		timer.Stop()
		p.interrupt() // nothing is left to be written or read
		close(s.done)
	}()
	go s.feed(script)
	return s, nil
}

// scriptLines is how many lines of a script's standard error are kept: zfs
// says a line for each name that it does not know.
const scriptLines = 10_000

// feed writes the script and then the beats. It ends with the process.
func (s *Script) feed(script string) {
	_, err := io.WriteString(s.p, script+"\n"+runWord+"\n")
	beat := time.NewTicker(beatEvery)
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

// Done is closed when the script has ended.
func (s *Script) Done() <-chan struct{} { return s.done }

// End closes the script's standard input and waits for it, at most for so
// long; then the remote shell is ended.
func (s *Script) End(within time.Duration) { _ = s.p.end(within); <-s.done }

// Result waits for the end of the script and returns its standard output and
// error and its exit status. The error is that of the way there: it tells that
// the script did not run, or nothing of how it ended.
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
	case s.excess != nil:
		err = s.excess
	case status != 0 && s.cause() != nil:
		err = s.cause()
	case s.p.forced.Load():
		err = errors.New("the remote shell did not end, and was ended")
	case !ran && (bytes.Contains(s.out.b.Bytes(), []byte("\n"+agentWord)) || strings.HasPrefix(s.p.stderr.String(), "zxfer: ")):
		// It takes the script for a message, and may say so before its hello.
		err = fault.Refusef("use an account that starts a shell", "its account always starts an agent, which runs no script")
	case !ran || status < 0 || status == 255 && isSSH(s.p.name):
		if err = s.p.failure(); err == nil {
			err = fmt.Errorf("no shell ran what it was sent; it said: %s", cmp.Or(strings.TrimSpace(s.p.stderr.String()), "nothing"))
		}
	}
	if err != nil {
		return nil, "", 0, fmt.Errorf("%s: %w", s.o.Host, err)
	}
	return s.out.b.Bytes(), s.p.stderr.text(), status, nil
}
