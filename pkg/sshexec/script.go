package sshexec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/budget"
	"zxfer/pkg/fault"
)

// Marker lines of a script and its output.
const (
	runWord = "zxfer-run" // the script is complete
	ranWord = "zxfer-ran" // the output of the script follows; also on standard error
)

// launcher reads a script from standard input and runs it once it is complete. Like script, it is
// quoted for any login shell. The script itself runs in the POSIX shell only.
const launcher = `LC_ALL=C; PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"; export LC_ALL PATH; ` +
	`n="$(printf "\n.")"; n="${n%.}"; s=; while IFS= read -r l; do ` +
	`if [ "$l" = ` + runWord + ` ]; then echo; echo ` + ranWord + `; { echo; echo ` + ranWord + `; } >&2; eval "$s"; exit; fi; s="$s$l$n"; done; exit 1`

// A script whose standard input is kept alive gets an empty line every beatInterval. One that gets
// none for BeatTimeout may end.
const (
	beatInterval = 5 * time.Second
	BeatTimeout  = 30 * time.Second
)

const (
	// maxOutput limits the output of a script in bytes. The Meter of a request is usually stricter.
	maxOutput = 64 << 20
	// scriptLines limits the kept lines of a script's standard error. zfs prints one for each unknown
	// name.
	scriptLines = 10_000
)

// ErrOutput means that a script printed more than zxfer keeps: maxOutput, or the limit of budget.MeterOf.
var ErrOutput = errors.New("its output is longer than zxfer accepts")

// ErrNoShell means that the account permits a login but runs no POSIX shell, for example because a
// forced command permits only some commands.
var ErrNoShell = errors.New("no shell ran the script")

var errBanner = fault.Failf(QuietLogin, "%w: the account printed more than %d bytes before", ErrNoShell, maxBanner)

// QuietLogin is the hint for an account whose login prints text for each command.
const QuietLogin = "let the login print nothing for commands: on that host, make this the first line of ~/.bashrc: case $- in *i*) ;; *) return ;; esac"

// Script is a running script in the POSIX shell of another host, which may lack zxfer, or a command
// there. The shell reads a script from standard input. So it needs no quoting for the login shell, may
// be longer than an argument, and may contain a secret.
type Script struct {
	*Pipe
	ctx  context.Context
	stop func() bool
	out  output
}

// output collects the output of a script.
type output struct {
	meter  *budget.Meter
	rows   budget.Rows
	pieces [][]byte // without spare memory, unlike a buffer that grows
	length int
	err    error // ErrOutput or nil
}

// maxPiece is the largest size of output.pieces in bytes.
const maxPiece = 64 << 10

func (o *output) Write(b []byte) (int, error) {
	if o.length+len(b) > maxOutput || !o.meter.Take(o.rows.Cost(b)) {
		o.pieces, o.err = nil, ErrOutput
		return 0, o.err
	}
	o.length += len(b)
	n := len(b)
	if last := len(o.pieces) - 1; last >= 0 && len(o.pieces[last])+n <= maxPiece {
		o.pieces[last] = append(o.pieces[last], b...)
	} else {
		o.pieces = append(o.pieces, slices.Clone(b))
	}
	return n, nil
}

// text returns the output once.
func (o *output) text() string {
	var all strings.Builder
	all.Grow(o.length)
	for i, piece := range o.pieces {
		_, _ = all.Write(piece) // never fails
		o.pieces[i] = nil
	}
	return all.String()
}

// Run starts a script, which ends with ctx or with End. Its output is kept in memory. After the
// script, its standard input is empty, and ends when zxfer ends. Run never asks for a password, because
// several scripts may run concurrently; see StartMaster.
func Run(ctx context.Context, o Options, script string) (*Script, error) {
	p, err := OpenPipe(ctx, o, script)
	if err != nil {
		return nil, err
	}
	return collect(ctx, p), nil
}

// RunCommand is like Run for one command line, see OpenCommand.
func RunCommand(ctx context.Context, o Options, line string) (*Script, error) {
	p, err := OpenCommand(ctx, o, line)
	if err != nil {
		return nil, err
	}
	_ = p.CloseWrite() // the command reads nothing
	return collect(ctx, p), nil
}

// collect keeps a command's output, and ends the command with ctx.
func collect(ctx context.Context, p *Pipe) *Script {
	s := &Script{Pipe: p, ctx: ctx, out: output{meter: budget.MeterOf(ctx)}}
	s.drain(&s.out)
	s.stop = context.AfterFunc(ctx, func() { p.End(quitTimeout) })
	return s
}

// Result waits for the end of the script and returns its standard output, standard error and exit
// status. If the script did not run or its outcome is unknown, it returns an error.
func (s *Script) Result() (stdout, stderr string, status int, err error) {
	stderr, status, err = s.Pipe.Result()
	s.stop()
	switch {
	case s.out.err != nil:
		err = fmt.Errorf("%s: %w", s.o.Host, s.out.err)
	case s.ctx.Err() != nil && (err != nil || status != 0):
		err = fmt.Errorf("%s: %w", s.o.Host, context.Cause(s.ctx))
	}
	if err != nil {
		return "", "", 0, err
	}
	return s.out.text(), stderr, status, nil
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
