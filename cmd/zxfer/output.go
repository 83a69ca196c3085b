package main

import (
	"context"
	"encoding/json"
	"io"
	"os"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/dev"
	"zxfer/pkg/job/restore"
	"zxfer/pkg/job/send"
	"zxfer/pkg/report"
	"zxfer/pkg/report/history"
	"zxfer/pkg/report/html"
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
		return fault.Usagef("", "--quiet and --verbose cannot be combined")
	}
	return o.page.check()
}

// reporter reports any kind of job.
type reporter interface {
	send.Reporter
	dev.Reporter
	restore.FilesReporter
	presenter
	// ActivityState is Activity with a description that changes.
	ActivityState(what func() string) (done func())
	Done(send.Result, error, report.ResultText) error
}

func (o *output) reporter(a *app, stdout io.Writer) reporter {
	opts := report.Options{Stdout: stdout, Stderr: a.stderr, Quiet: o.quiet, Verbose: o.verbose, Size: terminalSize(a.stderr)}
	if o.json {
		return report.NewJSON(opts)
	}
	return report.NewText(opts)
}

// jobRun is a job that a verb runs: its reporter, its connections, and the recorder of its page.
type jobRun struct {
	app      *app
	out      *output
	rep      reporter
	recorder *history.Recorder // nil without a page
	at       *hosts.Set
	stop     func() // of startLive
}

// start checks the flags and prepares a job that reports to stdout. std are the streams of a device
// copy.
func (o *output) start(a *app, stdout io.Writer, std device.Streams) (*jobRun, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	j := &jobRun{app: a, out: o, rep: o.reporter(a, stdout), recorder: o.page.recorder(a)}
	j.at = hosts.New(&opener{log: j.log, activity: j.rep.ActivityState, std: std})
	j.stop = startLive(j.rep)
	return j, nil
}

func (j *jobRun) log(message string) {
	j.recorder.Log(message)
	j.rep.Log(message)
}

// jobEnd holds the differences between verbs at the end of a job.
type jobEnd struct {
	text report.ResultText                                   // text of the result
	page func(html.About, history.Recording) ([]byte, error) // nil if the verb has no page
	done string                                              // prefix of an error to print the result of a success
}

// finish reports the result of a job that ended with err, and returns the error of the verb.
func (j *jobRun) finish(ctx context.Context, r send.Result, err error, end jobEnd) error {
	defer j.stop()
	_ = j.at.Close() // the results are complete; agents end with their stdin
	err = j.out.page.write(j.app, err, func(about html.About) ([]byte, error) { return end.page(about, j.recorder.Recording()) })
	unprinted := j.rep.Done(r, err, end.text)
	switch {
	case err == nil && unprinted != nil:
		return fault.Failf("", end.done+"%w", unprinted)
	case err != nil && j.out.json: // already printed
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
