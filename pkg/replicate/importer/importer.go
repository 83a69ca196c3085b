// Package importer turns the settings of other replication tools into a job
// file of zxfer replicate: sanoid.conf, syncoid command lines (also as lines
// of a crontab or a script), and zrepl.yml. It converts what means the same
// here, each job or command by itself, and lists everything else as left by
// hand, with what to do about it.
//
// It is pure: it reads text and writes text. It looks at no pool, so it cannot
// tell which datasets there are, and it changes no setting of the other tool.
// No schedule is made up: a job has one where the other tool's settings do.
// Retention reaches as far back as the other tool's at any date, and the first
// run removes nothing that the other tool would keep then: what it took is kept
// by its own rule beside the grid. Where a rule cannot be carried over, retention
// is left out, and the report says so.
package importer

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
)

// Kind is a tool whose settings can be read.
type Kind string

// The tools.
const (
	Sanoid  Kind = "sanoid"
	Syncoid Kind = "syncoid"
	Zrepl   Kind = "zrepl"
)

// Input is one text.
type Input struct {
	Name string // of the file, for messages
	Kind Kind   // "" = recognised by name and content
	Text []byte
}

// Options of an import.
type Options struct {
	// Target is "[user@]host:DATASET" or "DATASET": jobs that have no target
	// send there, each to its source's path below; but for those that only
	// remove what another host sends here. "" = they send nothing.
	Target string
	// Now is when the import is made: what zrepl took before goes by its rules.
	Now time.Time
}

// Entry is a setting that is left by hand.
type Entry struct {
	Where string `json:"where"`         // FILE:LINE
	Job   string `json:"job,omitempty"` // the job in the job file, "" where it is not one's
	What  string `json:"what"`          // the setting, in the other tool's words
	Do    string `json:"do"`
}

// Result is what came of an import.
type Result struct {
	// Text is a job file. Where a source or a target is left by hand, that key
	// is commented out: replicate.Parse then refuses the job for the lack of it
	// and for nothing else. A job that takes or removes snapshots and sends
	// nothing has no target.
	Text string
	Jobs []string // names
	Left []*Entry // by hand
}

// Import reads each of the inputs by itself. Errors are of class fault.Usage
// and name file and line.
func Import(inputs []Input, o Options) (*Result, error) {
	s := &state{options: o, entries: []*Entry{}}
	if err := s.checkTarget(); err != nil {
		return nil, err
	}
	for _, in := range inputs {
		kind := in.Kind
		if kind == "" {
			kind = Detect(in.Name, in.Text)
		}
		var err error
		switch kind {
		case Sanoid:
			err = s.sanoid(in.Name, string(in.Text))
		case Syncoid:
			err = s.syncoid(in.Name, string(in.Text))
		case Zrepl:
			err = s.zrepl(in.Name, in.Text)
		case "":
			err = fault.Usagef("name the tool: --from sanoid, --from syncoid or --from zrepl", "%s: neither a sanoid.conf, a zrepl.yml nor a syncoid command line", in.Name)
		default:
			err = fault.Usagef("write sanoid, syncoid or zrepl", "%q is not a tool whose settings can be imported", kind)
		}
		if err != nil {
			return nil, err
		}
	}
	return s.result()
}

// Detect tells whose settings a text holds, "" if none's that is known.
func Detect(name string, text []byte) Kind {
	switch base := path.Base(name); {
	case strings.HasPrefix(base, "sanoid") && strings.HasSuffix(base, ".conf"):
		return Sanoid
	case strings.HasSuffix(base, ".yml"), strings.HasSuffix(base, ".yaml"):
		return Zrepl
	}
	line := func(re string) bool { return regexp.MustCompile("(?m)" + re).Match(text) }
	switch {
	case line(`^\s*[^#\s].*\bsyncoid\b`) || line(`^\s*syncoid\b`):
		return Syncoid
	case line(`^("?jobs"?|include)\s*:`):
		return Zrepl
	case line(`^\s*\[[^\[\]]+\]\s*$`) && !line(`^\s*\[\[`): // not TOML
		return Sanoid
	}
	return ""
}

// state is what an import has found so far.
type state struct {
	options Options
	drafts  []*draft
	entries []*Entry
}

// left adds to what is left by hand. d may be nil; its name is filled in at the
// end.
func (s *state) left(d *draft, where, what, do string, args ...any) {
	e := &Entry{Where: where, What: what, Do: fmt.Sprintf(do, args...)}
	s.entries = append(s.entries, e)
	if d != nil {
		d.entries = append(d.entries, e)
	}
}

// result names the jobs, fills what can be filled, checks and writes them.
func (s *state) result() (*Result, error) {
	if len(s.drafts) == 0 && len(s.entries) == 0 {
		return nil, fault.Usagef("", "there is nothing to import: no dataset, no job, no command")
	}
	s.name()
	r := &Result{Jobs: []string{}, Left: s.entries}
	var whole replicate.File
	for _, d := range s.drafts {
		if o := s.options; o.Target != "" && len(d.Targets) == 0 && !d.alone {
			d.Targets = []replicate.Target{{Name: targetName, To: o.Target}}
		}
		alone := replicate.File{Jobs: []replicate.Job{d.Job}}
		if err := alone.Validate(); err != nil {
			return nil, fault.Usagef(fault.HintOf(err), "%s: %w", d.where, err)
		}
		for _, e := range d.entries {
			e.Job = d.Name
		}
		whole.Jobs = append(whole.Jobs, d.Job)
		r.Jobs = append(r.Jobs, d.Name)
	}
	if len(whole.Jobs) > 0 {
		if err := whole.Validate(); err != nil {
			return nil, fault.Usagef("import the files one by one, then bring the jobs together", "what was imported contradicts itself: %w", err)
		}
	}
	r.Text = write(s.drafts)
	return r, nil
}
