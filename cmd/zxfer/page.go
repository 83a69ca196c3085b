package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/job/send"
	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/report/history"
	"zxfer/pkg/report/html"
)

// pageFile is the file for a verb's HTML report.
type pageFile struct{ name string }

// define declares the flag.
func (p *pageFile) define(f *pflag.FlagSet) {
	f.StringVar(&p.name, "report", "", "write an HTML report to `FILE`, also after a failure")
}

// check refuses a file that could not be written hours later.
func (p *pageFile) check() error {
	if p.name == "" {
		return nil
	}
	return checkWritable("--report", p.name)
}

// recordRuns records a Runner's jobs in course, which may be nil. several adds the job to the names of
// transfers.
func recordRuns(r *runner.Runner, course *history.Recorder, several bool) {
	if course == nil {
		return
	}
	log, reporter := r.Env.Log, r.Env.Reporter
	r.Env.Log = func(message string) {
		course.Log(message)
		log(message)
	}
	r.Env.Reporter = func(name, target string) send.Reporter {
		to := target
		if several {
			to = name + " to " + target
		}
		return course.Send(reporter(name, target), to)
	}
}

// recorder returns a recorder for the page, or nil without a page.
func (p *pageFile) recorder(a *app) *history.Recorder {
	if p.name == "" {
		return nil
	}
	return history.NewRecorder(a.now)
}

// write writes the page and returns failure, joined with the error of writing.
func (p *pageFile) write(a *app, failure error, render func(html.About) ([]byte, error)) error {
	if p.name == "" {
		return failure
	}
	htmlFile, err := render(about(a))
	if err == nil {
		err = statedir.ReplaceKeepingMode(p.name, htmlFile)
	}
	if err != nil {
		return errors.Join(failure, fmt.Errorf("report was not written: %w", err))
	}
	return failure
}

// about returns the version, host and time for a page.
func about(a *app) html.About {
	host, err := os.Hostname()
	if err != nil {
		host = "this host"
	}
	return html.About{Version: buildVersion(), Host: host, Made: a.now()}
}

// checkWritable refuses a file that cannot be replaced atomically. It leaves no file behind. flag is
// the flag that names the file.
func checkWritable(flag, name string) error {
	info, err := os.Lstat(name)
	switch {
	case err == nil && !info.Mode().IsRegular(): // a link or /dev/stdout must not be replaced
		err = fmt.Errorf("%q is not a regular file", name)
	case err == nil || errors.Is(err, fs.ErrNotExist):
		var f *os.File
		if f, err = os.CreateTemp(filepath.Dir(name), ".zxfer-*.new"); err == nil {
			err = errors.Join(f.Close(), os.Remove(f.Name()))
		}
	}
	if of := new(fs.PathError); errors.As(err, &of) {
		of.Path = name
	}
	if err != nil {
		return fault.Usagef("name a file in an existing, writable directory", "%s: %w", flag, err)
	}
	return nil
}
