package main

import (
	"io"

	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/job"
	"zxfer/pkg/report"
)

// output is what a verb that moves data takes for what it shows.
type output struct {
	json, quiet, verbose bool
	page                 pageFile
}

// define defines the flags; verbose says what is shown more, "" where nothing is.
func (o *output) define(f *pflag.FlagSet, verbose string) {
	f.BoolVar(&o.json, "json", false, "one JSON object on stdout, progress as JSON lines on stderr")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "errors only")
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

// reporter shows any of the jobs.
type reporter interface {
	job.Reporter
	job.DevReporter
	job.FilesReporter
	presenter
	// ActivityState is Doing of what tells how far it is.
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

// ended is how a verb ends whose job ended with err: --json has told of that. What
// was done says what untold, that it could not be told of, is said of.
func (o *output) ended(err, untold error, done string) error {
	switch {
	case err == nil && untold != nil:
		return fault.Failf("", done+"%w", untold)
	case err != nil && o.json:
		return &shown{err}
	}
	return err
}
