package importer

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
)

// syncoidJobs makes jobs of commands. A command gives the policies of
// sanoid.conf that it covers a target; what is left of it is a job of its own.
func (s *state) syncoidJobs(policies []*policy, commands []*command) error {
	for _, c := range commands {
		d, err := s.syncoidJob(c)
		if err != nil {
			return err
		}
		if s.giveTargets(policies, c, d) {
			continue
		}
		if s.joined(d) {
			continue
		}
		s.add(d)
		s.alone(c, d)
	}
	return nil
}

// giveTargets adds the target of a command to the drafts of the policies that
// it covers, and tells whether these are all that the command sends.
func (s *state) giveTargets(policies []*policy, c *command, d *draft) bool {
	whole, sent := false, d.Job
	for _, p := range policies {
		if p.draft == nil || p.removes || !within(d.Source, p.path) || p.path != d.Source && (!d.Recursive || !sent.Selects(d.Source, p.path)) {
			continue
		}
		if p.draft.Recursive && !d.Recursive {
			s.note(p.draft, c.where, "syncoid "+c.source, Changed, "it sends no dataset below, but the job of %s is recursive: the command became a job of its own", p.where())
			continue
		}
		t := d.Targets[0]
		t.To += strings.TrimPrefix(p.path, d.Source)
		t.Retention = retentionAt(policies, t.To)
		if !reflect.DeepEqual(d.Transfer, replicate.Transfer{}) {
			tr := d.Transfer
			t.Transfer = &tr
		}
		p.draft.addTarget(t)
		p.draft.entries = append(p.draft.entries, d.entries...)
		if c.schedule != "" && c.schedule != p.draft.Schedule {
			s.note(p.draft, c.where, "syncoid "+c.source, Changed, "sent at every run of the job (%s) and not at %s", p.draft.Schedule, c.schedule)
		}
		if p.path == d.Source {
			whole = p.draft.Recursive || !d.Recursive
			if whole && len(sent.Exclude) > 0 {
				p.draft.Exclude = append(p.draft.Exclude, sent.Exclude...)
				s.note(p.draft, c.where, "--exclude, --skip-parent", ByHand, "a job also takes no snapshots of what it excludes: where sanoid does, write a job for it")
			}
			if whole {
				continue
			}
		}
		if pattern := literal(below(d.Source, p.path)); !slices.Contains(d.Exclude, pattern) {
			d.Exclude = append(d.Exclude, pattern)
		}
		if !p.draft.Recursive {
			s.note(p.draft, c.where, "syncoid "+c.source, ByHand, "it sends also what is below %s, of which sanoid takes no snapshots: write recursive = true where there is something", p.path)
		}
	}
	return whole
}

// retentionAt is what sanoid.conf keeps at a target on this host, nil without.
// What arrives there has the job's own names, too, which a job of sanoid's
// policy would not know.
func retentionAt(policies []*policy, to string) *replicate.Grid {
	for _, p := range policies {
		if !p.removes || to != p.path && !(p.recursive && within(p.path, to)) {
			continue
		}
		if grid, err := p.grid(); err == nil && grid != nil {
			p.at = append(p.at, to)
			return grid
		}
	}
	return nil
}

// joined adds the target of a draft to an earlier one that differs in nothing
// else.
func (s *state) joined(d *draft) bool {
	for _, o := range s.drafts {
		a, b := o.Job, d.Job
		transfer := a.Transfer
		a.Targets, b.Targets, a.Transfer, b.Transfer = nil, nil, replicate.Transfer{}, replicate.Transfer{}
		if len(o.Targets) == 0 || !reflect.DeepEqual(a, b) {
			continue
		}
		t := d.Targets[0]
		if o.Targets[0].To == t.To { // the same command again, with other ways to cross at most
			s.note(o, d.where, "syncoid", Dropped, "the command is there already: its source goes to %s in the job of %s", t.To, o.where)
			o.entries = append(o.entries, d.entries...)
			return true
		}
		if !reflect.DeepEqual(transfer, d.Transfer) {
			tr := d.Transfer
			t.Transfer = &tr
		}
		o.addTarget(t)
		o.entries = append(o.entries, d.entries...)
		return true
	}
	return false
}

// syncoidJob makes the draft of a command by itself.
func (s *state) syncoidJob(c *command) (*draft, error) {
	source, err := syncoidName(c.where, c.source)
	if err != nil {
		return nil, err
	}
	to, err := syncoidName(c.where, c.target)
	if err != nil {
		return nil, err
	}
	d := &draft{where: c.where, wish: jobWord(source.Name), Job: replicate.Job{
		Source: source.String(), Recursive: c.has("recursive"), Schedule: c.schedule,
	}}
	d.addTarget(replicate.Target{To: to.String()})
	if !strings.Contains(to.Name, "/") && strings.Contains(source.Name, "/") {
		s.note(d, c.where, c.target, ByHand, "syncoid makes the pool's own dataset the copy; here a pool receives the source's path below: name the dataset that is meant")
	}
	if c.has("skip-parent") && d.Recursive {
		d.Exclude = append(d.Exclude, ".")
	}
	s.syncoidSnapshots(c, d)
	if err := s.syncoidFlags(c, d, source, to); err != nil {
		return nil, err
	}
	return d, nil
}

// syncoidName reads a name as syncoid does: with "@" or a colon before the
// first "/" it is on another host.
func syncoidName(where, name string) (endpoint.Endpoint, error) {
	e, err := endpoint.Parse(strings.TrimPrefix(name, "@"))
	if err != nil {
		return e, fault.Usagef(fault.HintOf(err), "%s: %w", where, err)
	}
	if strings.ContainsAny(name, "$`*") {
		return e, fault.Usagef("put the value in its place", "%s: %q holds a variable or pattern of the shell", where, name)
	}
	e.Name, err = dataset(where, e.Name)
	return e, err
}

// syncoidSnapshots maps which snapshots a command takes and sends.
func (s *state) syncoidSnapshots(c *command, d *draft) {
	d.Snapshots.LatestOnly = c.has("no-stream")
	d.Snapshots.Adopt = []string{"*"}
	if only := c.all("include-snaps"); len(only) > 0 {
		var adopt []string
		for _, re := range only {
			patterns, ok := globs(re)
			if !ok {
				s.note(d, c.where, "--include-snaps="+re, ByHand, "this regular expression is no shell pattern: write what it means into snapshots.adopt, which has \"*\"")
				adopt = []string{"*"}
				break
			}
			adopt = append(adopt, patterns...)
		}
		d.Snapshots.Adopt = adopt
	}
	for _, re := range c.all("exclude-snaps") {
		s.note(d, c.where, "--exclude-snaps="+re, ByHand, "snapshots.adopt names what is sent, nothing takes away from it: write patterns of the others into it")
	}
	if !c.has("no-sync-snap") {
		d.Snapshots.Take = replicate.DefaultTemplate
	}
}

// alone reports what a command does not say that no sanoid.conf says either.
func (s *state) alone(c *command, d *draft) {
	if d.Schedule == "" {
		s.note(d, c.where, "schedule", ByHand, "the command has no time of cron: write schedule = \"hourly\" or another, else the job runs only by hand")
	}
	if d.Snapshots.Take != "" {
		s.note(d, c.where, "sync snapshots", ByHand, "syncoid keeps only its newest one; the job's own (zxfer_JOB_*) stay until there is a [job.retention]. "+
			"With adopt = [\"*\"] a grid would concern every snapshot: narrow adopt first, to what may be removed. syncoid_* snapshots of before can be destroyed after the first run")
	}
}

// excludeDatasets maps a regular expression that syncoid seeks in the full
// names of the source's datasets.
func (s *state) excludeDatasets(c *command, d *draft, re, source string) {
	if !d.Recursive {
		s.note(d, c.where, "--exclude="+re, Dropped, "it means nothing without --recursive")
		return
	}
	patterns, whole, ok := datasetPatterns(re, source)
	if !ok {
		s.note(d, c.where, "--exclude="+re, ByHand, "this regular expression is no pattern of datasets: write what it means into exclude; as it is, nothing is left out for it")
		return
	}
	if !whole {
		s.note(d, c.where, "--exclude="+re, Changed, "what is below the datasets that it finds is left out, too")
	}
	for _, p := range patterns {
		if !slices.Contains(d.Exclude, p) {
			d.Exclude = append(d.Exclude, p)
		}
	}
}

// datasetPatterns are patterns for Exclude that leave out what an expression
// finds in the full names of datasets at or below a source: a part of a name at
// any depth, or a path that begins with the source's. Others, and one that
// finds something in the source's own name, have none. whole tells that the
// expression finds also all that is below what it finds.
func datasetPatterns(re, source string) (patterns []string, whole, ok bool) {
	all, ok := globs(re)
	if r, err := regexp.Compile(re); !ok || err != nil || r.MatchString(source) {
		return nil, false, false
	}
	whole = true
	for _, p := range all {
		core, openHead := strings.CutPrefix(p, "*")
		core, openTail := strings.CutSuffix(core, "*")
		tail := ""
		if openTail {
			tail = "*"
		}
		whole = whole && openTail
		if strings.ContainsAny(core, `*?\`) {
			return nil, false, false // here these may match a "/"
		}
		path, under := strings.CutPrefix(core, source+"/")
		name, begins := strings.CutPrefix(core, "/")
		switch {
		case under && path != "":
			patterns = append(patterns, "/"+path+tail)
		case under, !openHead, name == "", strings.Contains(name, "/"):
			return nil, false, false
		case begins:
			patterns = append(patterns, name+tail)
		default:
			patterns = append(patterns, "*"+name+tail)
		}
	}
	return patterns, whole, true
}

// describe is a short form of a command for the report.
func (c *command) describe() string { return fmt.Sprintf("syncoid %s %s", c.source, c.target) }
