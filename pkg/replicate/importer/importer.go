package importer

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/remedy"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/jobfile"
)

// Kind is a tool whose settings can be imported.
type Kind string

const (
	Sanoid  Kind = "sanoid"
	Syncoid Kind = "syncoid"
	Zrepl   Kind = "zrepl"
)

// Input is one text.
type Input struct {
	Name string // file name, for messages
	Kind Kind   // "" = detected from name and content
	Text []byte
}

// Options of an import.
type Options struct {
	// Target is "[user@]host:DATASET" or "DATASET". Jobs without a target send there, to the
	// source's path below it, except jobs that only prune what other hosts send. "" = such jobs
	// send nothing.
	Target string
	// TargetConf is the sanoid.conf of the backup host, which prunes the copies; nil = none.
	TargetConf *Input
	// Now is the time of the import. Snapshots that zrepl took earlier follow its rules.
	Now time.Time
}

// Entry is a setting to convert by hand.
type Entry struct {
	Where string `json:"where"`         // FILE:LINE
	Job   string `json:"job,omitempty"` // name in the job file, "" if it concerns none
	What  string `json:"what"`          // the setting, in the other tool's terms
	Do    string `json:"do"`
}

// Result holds the job file and the settings to convert by hand.
type Result struct {
	// Text is the job file. A source or target to complete by hand is commented out, and
	// jobfile.Parse refuses the job only for its absence. A job without a target takes or
	// destroys snapshots and sends nothing.
	Text string
	Jobs []string // names
	Left []*Entry // entries to convert by hand
}

// Import converts the inputs independently. Its errors have class fault.Usage and name file and
// line.
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
			err = fault.Usagef("use sanoid, syncoid or zrepl", "cannot import the settings of %q", kind)
		}
		if err != nil {
			return nil, err
		}
	}
	return s.result()
}

// Detect returns the tool that a text belongs to, or "".
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
	case line(`^\s*\[[^\[\]]+\]\s*$`) && !line(`^\s*\[\[`): // TOML tables of a job file are excluded
		return Sanoid
	}
	return ""
}

// state holds the results of an import so far.
type state struct {
	options Options
	drafts  []*draft
	entries []*Entry
}

// addEntry adds an Entry. d may be nil. The entry's job name is set later.
func (s *state) addEntry(d *draft, where, what, do string, args ...any) {
	e := &Entry{Where: where, What: what, Do: fmt.Sprintf(do, args...)}
	s.entries = append(s.entries, e)
	if d != nil {
		d.entries = append(d.entries, e)
	}
}

// result names, completes, validates and writes the jobs.
func (s *state) result() (*Result, error) {
	if len(s.drafts) == 0 && len(s.entries) == 0 {
		return nil, fault.Usagef("", "there is nothing to import: no dataset, no job, no command")
	}
	s.name()
	for _, d := range s.drafts {
		if o := s.options; o.Target != "" && len(d.Targets) == 0 && !d.pruneOnly {
			d.Targets = []replicate.Target{{Name: targetName, To: o.Target}}
		}
	}
	if c := s.options.TargetConf; c != nil {
		if err := s.targetPolicies(c.Name, string(c.Text)); err != nil {
			return nil, err
		}
	}
	s.targets()
	r := &Result{Jobs: []string{}, Left: s.entries}
	var whole replicate.File
	for _, d := range s.drafts {
		alone := replicate.File{Jobs: []replicate.Job{d.Job}}
		if err := jobfile.Validate(&alone); err != nil {
			return nil, fault.Usagef(fault.HintOf(err), "%s: %w", d.where, err)
		}
		for _, e := range d.entries {
			e.Job = d.Name
		}
		whole.Jobs = append(whole.Jobs, d.Job)
		r.Jobs = append(r.Jobs, d.Name)
	}
	if len(whole.Jobs) > 0 {
		if err := jobfile.Validate(&whole); err != nil {
			return nil, fault.Usagef("import the files one by one, then merge the jobs", "the imported jobs are contradictory: %w", err)
		}
	}
	r.Text = write(s.drafts)
	return r, nil
}

func (s *state) add(d *draft) *draft {
	s.drafts = append(s.drafts, d)
	return d
}

// checkTarget checks Options.Target and makes it keep the paths of sources apart.
func (s *state) checkTarget() error {
	to := s.options.Target
	if to == "" {
		return nil
	}
	e, err := endpoint.Parse(to)
	if err != nil {
		return fmt.Errorf("--target: %w", err)
	}
	if strings.Contains(e.Name, "/") && !strings.HasSuffix(e.Name, "/") {
		s.options.Target += "/"
	}
	_, err = dataset("--target", e.Name)
	return err
}

// name gives every draft a valid and unique name.
func (s *state) name() {
	taken := map[string]bool{}
	for _, d := range s.drafts {
		d.Name = jobName(d.preferredName)
		for i := 2; taken[d.Name]; i++ {
			d.Name = fmt.Sprintf("%s-%d", jobName(d.preferredName), i)
		}
		taken[d.Name] = true
	}
}

// targets adds entries about the copies that exist already, with one command for each host, and about
// targets that keep all snapshots.
func (s *state) targets() {
	copies := map[remedy.Host][]string{}
	first := map[remedy.Host]string{}
	var order []remedy.Host
	var unlimited []*draft
	for _, d := range s.drafts {
		for i := range d.Targets {
			t := &d.Targets[i]
			to, err := endpoint.Parse(t.To)
			from, fromErr := endpoint.Parse(d.Source)
			if err != nil || fromErr != nil {
				continue // Validate reports it
			}
			if t.Retention == nil && !t.MirrorsSnapshots() {
				unlimited = append(unlimited, d)
			}
			name := t.CopyOf(from.Name, from.Name)
			if d.noTarget || name == "" || strings.Contains(from.Name+to.Name, placeholder) {
				continue
			}
			at := remedy.Host{Name: to.Host, Shell: d.Transfer.RSH}
			if !slices.Contains(order, at) {
				order = append(order, at)
				first[at] = d.where
			}
			if !slices.Contains(copies[at], name) {
				copies[at] = append(copies[at], name)
			}
		}
	}
	for _, at := range order {
		argv := append([]string{"zfs", "set", "readonly=on", "canmount=noauto"}, copies[at]...)
		s.addEntry(nil, first[at], "existing copies", "make them read-only, because zxfer refuses a modified copy: for the roots as here (volumes without canmount), "+
			"for all datasets with the command of zxfer replicate check: %s", at.Command(argv...))
	}
	if len(unlimited) == 0 {
		return
	}
	var jobs []string
	for _, d := range unlimited {
		jobs = append(jobs, d.Name)
	}
	s.addEntry(nil, unlimited[0].where, "retention of the target", "write [job.target.retention] in %s, or zxfer keeps all snapshots there; "+
		"to convert the sanoid.conf of the target, which prunes only autosnap_*: --target-conf FILE", strings.Join(slices.Compact(jobs), ", "))
}

// targetPolicies gives jobs the retention that sanoid.conf of the backup host has for their copies. It
// leaves to the user a copy of which sanoid treats descendants differently, and jobs whose scope has
// other snapshots than sanoid's.
func (s *state) targetPolicies(file, text string) error {
	sections, err := parseINI(file, text)
	if err != nil {
		return err
	}
	policies, err := sanoidPolicies(sections)
	if err != nil {
		return err
	}
	for _, d := range s.drafts {
		from, err := endpoint.Parse(d.Source)
		if err != nil || d.noSource || d.noTarget || len(d.Targets) != 1 || d.Targets[0].Retention != nil {
			continue
		}
		t := &d.Targets[0]
		name := t.CopyOf(from.Name, from.Name)
		p := policyOf(policies, name)
		why := ""
		switch {
		case p == nil:
			why = "it has no section for " + name
		case !slices.Equal(d.Snapshots.Adopt, []string{sanoidNames}):
			why = "the job adopts other snapshots than sanoid's (snapshots.adopt)"
		case d.Recursive && (!p.recursive || slices.ContainsFunc(policies, func(o *policy) bool { return o != p && o.path != name && isWithin(name, o.path) })):
			why = "it treats descendants of " + name + " differently"
		case p.grid() == nil:
			why = "it does not prune " + name
		default:
			t.Retention = p.grid()
			continue
		}
		s.addEntry(d, d.where, file, "write [job.target.retention]: %s", why)
	}
	return nil
}
