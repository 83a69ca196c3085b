package replicate

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/way"
	"zxfer/pkg/zfs"
)

// maxKept bounds the snapshots of one rule.
const maxKept = 100_000

// Validate checks what the decoder cannot. Its errors name job and key.
func (f *File) Validate() error { return f.validate(places{}) }

// validate is Validate for a file whose places are known.
func (f *File) validate(at places) error {
	var errs []error
	if f.Jobs == nil { // as a file that was cut short has none
		errs = append(errs, fault.Usagef("zxfer replicate init writes one; where the last is to go, for install and holds --gc: job = []", "the file has no [[job]]"))
	}
	if t := f.Metrics.Textfile; t != "" && (!path.IsAbs(t) || path.Ext(t) != ".prom") {
		errs = append(errs, fault.Usagef("the collector reads only such files", "metrics.textfile %q is not an absolute path that ends in .prom", t))
	}
	seen := map[string]bool{}
	for i := range f.Jobs {
		j := &f.Jobs[i]
		if seen[j.Name] {
			errs = append(errs, fmt.Errorf("two jobs are named %q", j.Name))
		}
		seen[j.Name] = true
	}
	errs = append(errs, f.overlaps()...)
	for i, err := range errs {
		errs[i] = fmt.Errorf("%s%w", at.file(), err)
	}
	for i := range f.Jobs {
		for _, err := range f.Jobs[i].faults() {
			errs = append(errs, fmt.Errorf("%sjob %q%s: %w", at.job(i), f.Jobs[i].Name, at.of(i), err))
		}
	}
	return errors.Join(errs...)
}

// overlaps refuses two jobs that would take, or remove, each other's
// snapshots of one dataset.
func (f *File) overlaps() []error {
	var errs []error
	for i := range f.Jobs {
		for k := range i {
			a, b := &f.Jobs[k], &f.Jobs[i]
			if a.Snapshots.Take == "" || b.Snapshots.Take == "" || !a.overlaps(b) {
				continue
			}
			x, errX := a.Scope()
			y, errY := b.Scope()
			if errX == nil && errY == nil && x.naming.glob == y.naming.glob {
				errs = append(errs, fault.Usagef("put {job} into the templates",
					"jobs %q and %q take snapshots of the same datasets under the same names: each would remove the other's", a.Name, b.Name))
			}
		}
	}
	return errs
}

func (j *Job) overlaps(o *Job) bool {
	a, b := j.Source, o.Source
	return a == b || j.Recursive && strings.HasPrefix(b, a+"/") || o.Recursive && strings.HasPrefix(a, b+"/")
}

// faults are what is wrong with a part of a file.
type faults struct {
	at   string // what every message begins with
	errs []error
}

func (f *faults) add(err error) {
	if err != nil {
		f.errs = append(f.errs, fmt.Errorf("%s%w", f.at, err))
	}
}

func (f *faults) bad(format string, args ...any) { f.add(fmt.Errorf(format, args...)) }

// named refuses what is no name of a job or target.
func (f *faults) named(name string) {
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,47}$`).MatchString(name) {
		f.bad(`name %q: write letters, digits, "-" and "_", at most 48`, name)
	}
}

func (f *faults) word(key, value string, words ...string) {
	if value != "" && !slices.Contains(words, value) {
		f.bad("%s = %q: write one of %s", key, value, strings.Join(words, ", "))
	}
}

func (f *faults) choice(c *Choice, recursive bool) {
	if !recursive && (len(c.Include)+len(c.Exclude) > 0 || c.Property != "") {
		f.bad("include, exclude and property have no effect without recursive = true")
	}
	f.patterns("include", c.Include)
	f.patterns("exclude", c.Exclude)
	name, value, valued := strings.Cut(c.Property, "=")
	switch {
	case c.Property == "":
	case !zfs.UserProperty(name) || valued && value == "":
		f.bad(`property %q: write NAME=VALUE, or NAME alone, of a user property, such as "zxfer:job=home"`, c.Property)
	default:
		if err := cmp.Or(zfs.CheckProperty(name), zfs.CheckValue(name, value)); err != nil {
			f.bad("property: %w", err)
		}
	}
}

func (f *faults) sent(s *Sent) {
	f.number("snapshots.newest", s.Newest, 0, maxKept)
	if s.LatestOnly && (s.Newest > 0 || s.Since > 0) {
		f.bad("snapshots.latest_only is newest = 1: leave one out")
	}
}

func (f *faults) first(first plan.First) {
	f.word("first", string(first), plan.FirstWays()...)
}

func (f *faults) number(key string, n, low, high int) {
	if n < low || n > high {
		f.bad("%s = %d: write %d to %d", key, n, low, high)
	}
}

func (f *faults) patterns(key string, patterns []string) {
	for _, p := range patterns {
		if _, err := plan.ParsePattern(p); err != nil {
			f.bad("%s: %w", key, err)
		}
	}
}

func (f *faults) endpoint(key, s string, target bool) {
	if s == "" {
		f.bad("%s is missing", key)
		return
	}
	e, err := endpoint.Parse(s)
	name := e.Name
	if target {
		name = strings.TrimSuffix(name, "/")
	}
	switch {
	case err != nil:
	case e.Path():
		err = fmt.Errorf("%q is a path; write the name of a dataset", s)
	default:
		_, err = zfs.ParseDataset(name)
	}
	if err != nil {
		f.bad("%s: %w", key, err)
	}
}

func (f *faults) grid(key string, g *Grid) {
	if g == nil {
		return
	}
	for _, r := range g.rules() {
		f.number(key+"."+r.name, r.count, 0, maxKept)
	}
	for _, a := range g.Also {
		f.patterns(key+".also.names", a.Names)
		if len(a.Names) == 0 || a.Last < 0 || a.Last > maxKept || a.Last == 0 && a.Age == 0 {
			f.bad("%s.also: write names, and last (0 to %d), age or both", key, maxKept)
		}
	}
	if g.Empty() {
		f.bad("%s keeps nothing; leave the table out to keep everything", key)
	}
}

func (f *faults) mirror(j *Job, t *Target) {
	if t.Mirror == nil {
		return
	}
	f.number("mirror.limit", t.Mirror.AtMost(), 0, maxKept)
	if t.Retention != nil && t.Mirror.Gone == 0 {
		f.bad("mirror and retention: choose which snapshots stay by the one or the other; with retention only mirror.gone has an effect")
	}
	if t.Mirror.Gone != 0 && !j.Recursive {
		f.bad("mirror.gone has no effect without recursive = true")
	}
	if t.Mirror.Gone != 0 && (j.Holds == "none" || j.Holds == "source") {
		f.bad("mirror.gone knows the job's copies by its holds there: write holds = \"both\" or \"target\"")
	}
}

func (f *faults) hook(key string, h *Hook) {
	f.word(key+".on_failure", h.OnFailure, "stop", "continue")
	if len(h.Command) == 0 || h.Command[0] == "" {
		f.bad(`%s: command is missing; write ["/path/of/command", "argument"]`, key)
	} else if !path.IsAbs(h.Command[0]) {
		f.bad("%s: command %q is not an absolute path: a timer has no PATH of yours", key, h.Command[0])
	}
	if key != "before" && h.OnFailure != "" {
		f.bad("%s.on_failure has no effect: the run is over by then", key)
	}
}

func (f *faults) drill(d *Drill) {
	if d == nil {
		return
	}
	if _, err := calendar.Parse(d.Schedule); d.Schedule != "" && err != nil {
		f.bad("drill.schedule: %w", err)
	}
	if len(d.Command) > 0 && !path.IsAbs(d.Command[0]) {
		f.bad("drill.command: %q is not an absolute path on the copy's host", d.Command[0])
	}
	if len(d.Command) == 0 && (d.Writable || d.Timeout != 0) {
		f.bad("drill.writable and drill.timeout have no effect without drill.command")
	}
	if d.KeyFile != "" && CheckPath(d.KeyFile) != nil {
		f.bad("drill.key_file: %q is not an absolute path on the copy's host", d.KeyFile)
	}
}

func (f *faults) transfer(t *Transfer) {
	for _, err := range t.Way.Faults(way.JobFile) {
		f.add(InKeys(err))
	}
	for _, id := range t.SkipChecks {
		if !preflight.Skippable(id) {
			f.bad("transfer.skip_checks: there is no check %q; docs/checks.md lists them", id)
		}
	}
}

func (f *faults) properties(p *Properties) {
	for name, value := range p.Set {
		if err := cmp.Or(zfs.CheckProperty(name), zfs.CheckValue(name, value)); err != nil {
			f.bad("properties.set: %w", err)
		}
		if slices.Contains(p.Exclude, name) {
			f.bad("properties: %s is both set and excluded", name)
		}
	}
	for _, name := range p.Exclude {
		if err := zfs.CheckProperty(name); err != nil {
			f.bad("properties.exclude: %w", err)
		}
	}
}

// faults are all that is wrong with a job.
func (j *Job) faults() []error {
	f := &faults{}
	f.named(j.Name)
	f.endpoint("source", j.Source, false)
	f.choice(&j.Choice, j.Recursive)
	f.sent(&j.Snapshots.Sent)
	f.patterns("snapshots.adopt", j.Snapshots.Adopt)
	if _, err := calendar.Parse(j.Schedule); j.Schedule != "" && err != nil {
		f.bad("schedule: %w", err)
	}
	if err := CheckUser(j.User); j.User != "" && err != nil {
		f.bad("user: %w", err)
	}
	if j.Schedule == "" && j.Jitter+j.Grace != 0 {
		f.bad("jitter and grace have no effect without a schedule")
	}
	if _, err := j.Scope(); err != nil {
		f.bad("snapshots: %w", err)
	}
	if j.Snapshots.SkipUnchanged && j.Snapshots.Take == "" {
		f.bad("snapshots.skip_unchanged has no effect without snapshots.take")
	}
	f.grid("retention", j.Retention)
	f.number("prune_limit", j.PruneAtMost(), 0, maxKept)
	if j.Parallel != 0 {
		f.number("parallel", j.Parallel, 1, way.MaxParallel)
	}
	f.number("retries", j.Tries(), 0, way.MaxRetries)
	f.first(j.First)
	f.word("holds", j.Holds, "both", "source", "target", "none")
	f.word("bookmarks", j.Bookmarks, "sent", "none")
	f.transfer(&j.Transfer)
	f.drill(j.Drill)
	j.freezeFaults(f)
	j.targetFaults(f)
	if len(j.Targets) == 0 {
		j.aloneFaults(f)
	}
	for i := range j.Before {
		f.hook("before", &j.Before[i])
	}
	for i := range j.After {
		f.hook("after", &j.After[i])
	}
	if j.Alert != nil {
		f.hook("alert", j.Alert)
	}
	return f.errs
}

func (j *Job) targetFaults(f *faults) {
	seen, places := map[string]bool{}, map[string]string{}
	for i := range j.Targets {
		t := &j.Targets[i]
		f.at = fmt.Sprintf("target %q: ", t.Name)
		f.named(t.Name)
		f.endpoint("to", t.To, true)
		if to := j.ontoItself(t); to != "" {
			f.bad("to %q is %s, which is part of the source", t.To, to)
		}
		f.grid("retention", t.Retention)
		f.first(t.First)
		f.word("on_divergence", t.OnDivergence, "refuse", "rotate")
		f.mirror(j, t)
		f.choice(&t.Choice, j.Recursive)
		f.sent(&t.Snapshots.Sent)
		f.patterns("snapshots.only", t.Snapshots.Only)
		if t.Transfer != nil {
			f.transfer(t.Transfer)
		}
		f.drill(t.Drill)
		if t.Drill != nil && t.Drill.Schedule != "" {
			f.bad("drill.schedule is the job's: write it into [job.drill]")
		}
		f.add(j.between(t))
		f.properties(&t.Properties)
		f.at = ""
		if seen[t.Name] {
			f.bad("two targets are named %q", t.Name)
		}
		seen[t.Name] = true
		if t.Name == SourceSide {
			f.bad("a target cannot be named %q: that is what records and prune call the job's own side", t.Name)
		}
		if same, ok := places[t.To]; ok {
			f.bad("targets %q and %q are one place, %s: two streams would meet there", same, t.Name, t.To)
		}
		places[t.To] = t.Name
	}
}

// ontoItself returns the dataset that a target names if it is the source or, of a
// recursive job, below it, by the names of hosts as they are written; else "".
func (j *Job) ontoItself(t *Target) string {
	from, errFrom := endpoint.Parse(j.Source)
	to, errTo := endpoint.Parse(t.To)
	if errFrom != nil || errTo != nil || from.Host != to.Host {
		return ""
	}
	name := t.CopyOf(from.Name, from.Name)
	if name == from.Name || name != "" && j.Recursive && strings.HasPrefix(name, from.Name+"/") {
		return name
	}
	return ""
}

// between refuses a wire that does not lead from the source to a target. What one
// host is sent is always within it, whatever the wire of the others.
func (j *Job) between(t *Target) error {
	from, errFrom := endpoint.Parse(j.Source)
	to, errTo := endpoint.Parse(t.To)
	if errFrom != nil || errTo != nil || from.Host == to.Host {
		return nil
	}
	return InKeys(j.TransferTo(t).Between(from.Local(), to.Local()))
}

// aloneFaults are what is wrong with a job for the lack of a target.
func (j *Job) aloneFaults(f *faults) {
	if j.Snapshots.Take == "" && j.Retention == nil {
		f.add(fault.Usagef("write a [[job.target]] to send to, snapshots.take to take snapshots, or [job.retention] to remove them",
			"it has no [[job.target]], takes no snapshots and removes none: there is nothing for it to do"))
	}
	transfer := j.Transfer
	transfer.RSH, transfer.NoBootstrap = "", false // these reach the source
	if transfer.Wire == way.NC {
		transfer.Wire, transfer.TrustedLink = "", false // by its plain tools
	}
	for _, k := range []struct {
		key string
		set bool
	}{
		{"snapshots.newest", j.Snapshots.Newest != 0},
		{"snapshots.since", j.Snapshots.Since != 0},
		{"snapshots.latest_only", j.Snapshots.LatestOnly},
		{"first", j.First != ""},
		{"parallel", j.Parallel != 0},
		{"retries", j.Retries != nil},
		{"holds", j.Holds != ""},
		{"bookmarks", j.Bookmarks != ""},
		{"drill", j.Drill != nil},
		{"transfer (but for rsh, no_bootstrap and wire = \"nc\")", !reflect.DeepEqual(transfer, Transfer{})},
	} {
		if k.set {
			f.bad("%s has no effect without a [[job.target]]", k.key)
		}
	}
}
