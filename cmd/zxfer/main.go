// Command zxfer moves ZFS datasets between hosts over authenticated TCP.
//
// It is thin: each verb turns its flags into a request, has another package
// carry it out, and turns the outcome into an exit code. It holds no state
// between runs and changes nothing by itself.
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
	os.Exit(execute(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// execute carries out one command line and returns the exit code.
func execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := interruptible(ctx)
	defer stop()
	return executeApp(ctx, &app{stdin: stdin, stdout: stdout, stderr: stderr, now: time.Now}, args)
}

func executeApp(ctx context.Context, a *app, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	if !a.started && fault.ClassOf(err) == fault.Failed {
		// Flags and arguments that cobra did not take.
		hint := didYouMean(flagsLike(cmd, err)) + helpOf(cmd)
		if cmd == root {
			hint += " lists the verbs, zxfer help VERB the flags"
		}
		err = fault.Usagef(hint, "%s", err.Error())
	}
	if !errors.As(err, new(*shown)) {
		report.Error(a.stderr, err)
	}
	return int(exitClass(ctx, err))
}

// app is what every verb needs of its surroundings.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	// now is the clock of schedules and of snapshots' names.
	now func() time.Time
	// started tells that a verb took over: what went wrong before was the
	// command line.
	started bool
}

// shown is an error that the user has been told of already.
type shown struct{ error }

func (s *shown) Unwrap() error { return s.error }

// exitClass is the class of err, of a verb that ended in ctx.
func exitClass(ctx context.Context, err error) fault.Class {
	return fault.ClassOf(outcome.Settle(ctx, err))
}
