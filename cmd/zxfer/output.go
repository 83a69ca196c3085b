package main

import (
	"encoding/json"
	"io"
	"os"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"zxfer/pkg/fault"
	"zxfer/pkg/job"
	"zxfer/pkg/report"
)

// output holds the flags that control output.
type output struct {
	json, quiet, verbose bool
	page                 pageFile
}

// define declares the flags. verbose is the help of -v, or "" if the verb has no -v.
func (o *output) define(f *pflag.FlagSet, verbose string) {
	f.BoolVar(&o.json, "json", false, "print JSON, and progress as JSON lines on standard error")
	f.BoolVarP(&o.quiet, "quiet", "q", false, quietHelp)
	if verbose != "" {
		f.BoolVarP(&o.verbose, "verbose", "v", false, verbose)
		o.page.define(f)
	}
}

func (o *output) check() error {
	if o.quiet && o.verbose {
		return fault.Usagef("", "--quiet and --verbose exclude each other")
	}
	return o.page.check()
}

// reporter reports any kind of job.
type reporter interface {
	job.Reporter
	job.DevReporter
	job.FilesReporter
	presenter
	// ActivityState is Activity with a description that changes.
	ActivityState(what func() string) (done func())
	Done(*job.Report, error) error
	DeviceDone(*job.DevReport, error) error
	FilesDone(*job.FilesReport, error) error
	HealDone(*job.HealReport, error) error
	CompareDone(*job.CompareReport, error) error
}

func (o *output) reporter(a *app, stdout io.Writer) reporter {
	opts := report.Options{Stdout: stdout, Stderr: a.stderr, Quiet: o.quiet, Verbose: o.verbose, Size: terminalSize(a.stderr)}
	if o.json {
		return report.NewJSON(opts)
	}
	return report.NewText(opts)
}

// finish returns the error of a verb. err is the job's error, which --json has already printed.
// untold is the error of printing the result; done is its prefix.
func (o *output) finish(err, untold error, done string) error {
	switch {
	case err == nil && untold != nil:
		return fault.Failf("", done+"%w", untold)
	case err != nil && o.json:
		return &reportedError{err}
	}
	return err
}

// terminalSize returns a function for the size of the terminal w. It returns nil if w is not a
// terminal or cannot move its cursor.
func terminalSize(w io.Writer) func() (columns, rows int) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return func() (int, int) {
		columns, rows, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0, 0
		}
		return columns, rows
	}
}

// colored reports whether w is a terminal with colors that the user wants.
//
// https://no-color.org
func colored(w io.Writer) bool { return os.Getenv("NO_COLOR") == "" && terminalSize(w) != nil }

func writeJSON(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}
