package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/job"
	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/report/history"
	"zxfer/pkg/report/html"
)

// pageFile is where a verb writes the page that shows its work.
type pageFile struct{ name string }

// define declares the flag that names it.
func (p *pageFile) define(f *pflag.FlagSet) {
	f.StringVar(&p.name, "report", "", "write a page that shows all this to `FILE`, as HTML that needs no network: the rate over time and what limited it, the plan, what was found; also when it fails")
}

// check refuses a file that could not be written when hours have gone by.
func (p *pageFile) check() error {
	if p.name == "" {
		return nil
	}
	return writable("--report", p.name)
}

// watch has the course of a Runner's jobs kept, of which there are several or one.
func watch(r *runner.Runner, course *history.Recorder, several bool) {
	if course == nil {
		return
	}
	log, reporter := r.Log, r.Reporter
	r.Log = func(message string) {
		course.Log(message)
		log(message)
	}
	r.Reporter = func(name, target string) job.Reporter {
		to := target
		if several {
			to = name + " to " + target
		}
		return course.Send(reporter(name, target), to)
	}
}

// recorder keeps the course for the page; nil where none is wanted.
func (p *pageFile) recorder(a *app) *history.Recorder {
	if p.name == "" {
		return nil
	}
	return history.NewRecorder(a.now)
}

// write writes the page, whatever became of the verb: its error comes back, with
// that of writing.
func (p *pageFile) write(a *app, failure error, render func(html.About) ([]byte, error)) error {
	if p.name == "" {
		return failure
	}
	htmlFile, err := render(about(a))
	if err == nil {
		err = statedir.Put(p.name, htmlFile)
	}
	if err != nil {
		return errors.Join(failure, fmt.Errorf("the report was not written: %w", err))
	}
	return failure
}

// about is what a page says of its making.
func about(a *app) html.About {
	host, err := os.Hostname()
	if err != nil {
		host = "this host"
	}
	return html.About{Version: buildVersion(), Host: host, Made: a.now()}
}

// writable refuses a file that cannot be written, as a whole, beside what it is to
// replace. It leaves none. flag is what named it.
func writable(flag, name string) error {
	info, err := os.Lstat(name)
	switch {
	case err == nil && !info.Mode().IsRegular(): // replacing a link, or /dev/stdout, is not what was meant
		err = fmt.Errorf("%s is no regular file", name)
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
		return fault.Refusef("name a file that can be written", "%s: %w", flag, err)
	}
	return nil
}
