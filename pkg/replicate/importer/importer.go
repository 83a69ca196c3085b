// Package importer turns the settings of other replication tools into a job
// file of zxfer replicate: sanoid.conf, syncoid command lines (also as lines
// of a crontab or a script), and zrepl.yml. What works otherwise here, what has
// no counterpart and what the user has to fill in goes into a report.
//
// It is pure: it reads text and writes text. It looks at no pool, so it cannot
// tell which datasets there are, and it changes no setting of the other tool.
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

// Class says what an entry of the report asks of its reader.
type Class string

// The classes, by urgency.
const (
	ByHand  Class = "by-hand" // is left to the user: a source, target or hook that is a comment in the job file, a timer to end
	Changed Class = "changed" // carried over, and works differently
	Dropped Class = "dropped" // has no counterpart
)

// Entry is one line of the report.
type Entry struct {
	Where string `json:"where"`         // FILE:LINE
	Job   string `json:"job,omitempty"` // the job in the job file, "" where it is not one's
	What  string `json:"what"`          // the setting, in the other tool's words
	Class Class  `json:"class"`
	Why   string `json:"why"`
}

// Result is what came of an import.
type Result struct {
	// Text is a job file. Where entries of class ByHand name a source or a
	// target, that key is commented out: replicate.Parse then refuses the job
	// for the lack of it and for nothing else. A job that takes or removes
	// snapshots and sends nothing has no target.
	Text    string
	Jobs    []string // names
	Alone   []string // those of jobs without a target
	Entries []Entry
}

// Count is how many entries of a class there are.
func (r *Result) Count(c Class) int {
	n := 0
	for i := range r.Entries {
		if r.Entries[i].Class == c {
			n++
		}
	}
	return n
}

// Import reads the inputs together: a syncoid command gives sanoid's policies
// of the same datasets their target, a local sink of zrepl its push job. Errors
// are of class fault.Usage and name file and line.
func Import(inputs []Input, o Options) (*Result, error) {
	s := &state{options: o}
	if err := s.checkTarget(); err != nil {
		return nil, err
	}
	var sections []*section
	var commands []*command
	z := &zrepl{state: s}
	for _, in := range inputs {
		kind := in.Kind
		if kind == "" {
			if kind = Detect(in.Name, in.Text); kind == "" {
				return nil, fault.Usagef("name the tool: --from sanoid, --from syncoid or --from zrepl", "%s: neither a sanoid.conf, a zrepl.yml nor a syncoid command line", in.Name)
			}
		}
		var err error
		switch kind {
		case Sanoid:
			var more []*section
			more, err = parseINI(in.Name, string(in.Text))
			sections = append(sections, more...)
		case Syncoid:
			var more []*command
			more, err = s.parseCommands(in.Name, string(in.Text))
			commands = append(commands, more...)
		case Zrepl:
			err = z.read(in.Name, in.Text)
		default:
			err = fault.Usagef("write sanoid, syncoid or zrepl", "%q is no tool whose settings can be imported", kind)
		}
		if err != nil {
			return nil, err
		}
	}
	policies, err := s.policies(sections)
	if err != nil {
		return nil, err
	}
	if err := s.syncoidJobs(policies, commands); err != nil {
		return nil, err
	}
	s.removeAlone(policies)
	if err := z.jobs(); err != nil {
		return nil, err
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
	carried []string // where settings are that need no entry, as a job has them
}

// note adds to the report. d may be nil; its name is filled in at the end.
func (s *state) note(d *draft, where, what string, class Class, why string, args ...any) {
	e := &Entry{Where: where, What: what, Class: class, Why: fmt.Sprintf(why, args...)}
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
	for _, d := range s.drafts {
		s.fill(d)
	}
	s.separate()
	for _, d := range s.drafts {
		if err := d.check(); err != nil {
			return nil, fault.Usagef(fault.HintOf(err), "%s: %w", d.where, err)
		}
	}
	if len(s.drafts) > 0 {
		var whole replicate.File
		for _, d := range s.drafts {
			whole.Jobs = append(whole.Jobs, d.Job)
		}
		if err := whole.Validate(); err != nil {
			return nil, fault.Usagef(fault.HintOf(err), "what was imported contradicts itself: %w", err)
		}
	}
	r := &Result{Jobs: []string{}, Entries: []Entry{}}
	for _, d := range s.drafts {
		for _, e := range d.entries {
			e.Job = d.Name
		}
		r.Jobs = append(r.Jobs, d.Name)
		if len(d.Targets) == 0 {
			r.Alone = append(r.Alone, d.Name)
		}
	}
	for _, class := range []Class{ByHand, Changed, Dropped} {
		for _, e := range s.entries {
			if e.Class == class {
				r.Entries = append(r.Entries, *e)
			}
		}
	}
	r.Text = write(s.drafts)
	return r, nil
}

// separate gives a job a naming of its own where another takes snapshots of
// the same datasets under the same names, which replicate refuses.
func (s *state) separate() {
	for i, d := range s.drafts {
		for _, earlier := range s.drafts[:i] {
			same := d.Snapshots.Take == earlier.Snapshots.Take && d.Snapshots.Take != "" && !strings.Contains(d.Snapshots.Take, "{job}")
			if !same || !(earlier.noSource && d.noSource) && !within(earlier.Source, d.Source) && !within(d.Source, earlier.Source) {
				continue
			}
			old := d.Snapshots.Take
			d.Snapshots.Take = replicate.DefaultTemplate
			s.note(d, d.where, old, Changed, "job %q names its snapshots of the same datasets so: this one's are named %s", earlier.Name, replicate.DefaultTemplate)
			break
		}
	}
}
