// Command zxfer copies ZFS datasets and block devices between hosts over authenticated TCP.
//
// Its nouns:
//
//	verb     a subcommand, one file each
//	app      the streams and the clock that verbs use
//	options  the flags of a verb, and the request made from them
//	opener   connects to the hosts of a job
//	page     an HTML report in a file
//
// Each verb turns its flags into a request, passes it to another package and turns the result into
// an exit code. The package does no work on datasets itself.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/report"
)

func main() {
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, now: time.Now}
	ctx, stop := withSignals(context.Background())
	code := execute(ctx, a, os.Args[1:])
	stop()
	os.Exit(code)
}

// execute runs one command line and returns its exit code.
func execute(ctx context.Context, a *app, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	if !a.started && fault.ClassOf(err) == fault.Failed {
		// Errors of cobra about flags and arguments.
		err = fault.Usagef(didYouMean(similarFlags(cmd, err))+helpOf(cmd), "%s", err.Error())
	}
	if !errors.As(err, new(*reportedError)) {
		report.Error(a.stderr, err)
	}
	return exitClass(ctx, err).ExitCode()
}

// app holds the environment of a verb.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	// now returns the current time for schedules and snapshot names.
	now func() time.Time
	// started reports that a verb took over. Earlier errors concern the command line.
	started bool
}

// reportedError is an error that the user has already seen.
type reportedError struct{ error }

func (s *reportedError) Unwrap() error { return s.error }

// exitClass returns the class of err for a verb that ended in ctx.
func exitClass(ctx context.Context, err error) fault.Class {
	return fault.ClassOf(outcome.Settle(ctx, err))
}
