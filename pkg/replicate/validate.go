package replicate

import (
	"errors"
	"fmt"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/preflight"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/way"
	"zxfer/pkg/zfs"
)

// Bounds of a job's numbers.
const (
	maxKept = 100_000 // snapshots of one rule
)

// Validate checks what the decoder cannot. Its errors name job and key.
func (f *File) Validate() error { return f.validate(places{}) }

// validate is Validate for a file whose places are known.
func (f *File) validate(at places) error {
	var errs []error
	if len(f.Jobs) == 0 {
		errs = append(errs, fault.Usagef("zxfer replicate init writes one", "the file has no [[job]]"))
	}
	if t := f.Metrics.Textfile; t != "" && (!path.IsAbs(t) || path.Ext(t) != ".prom") {
		errs = append(errs, fault.Usagef("the collector reads only such files", "metrics.textfile %q is no absolute path that ends in .prom", t))
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
			errs = append(errs, fmt.Errorf("%sjob %q: %w", at.job(i), f.Jobs[i].Name, err))
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

// faults are all that is wrong with a job.
func (j *Job) faults() []error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !plainWord(j.Name) {
		bad(`name %q: write letters, digits, "-" and "_", at most 48`, j.Name)
	}
	errs = append(errs, checkEndpoint("source", j.Source, false)...)
	if !j.Recursive && len(j.Include)+len(j.Exclude) > 0 {
		bad("include and exclude have no effect without recursive = true")
	}
	errs = append(errs, checkPatterns("include", j.Include)...)
	errs = append(errs, checkPatterns("exclude", j.Exclude)...)
	errs = append(errs, checkPatterns("snapshots.adopt", j.Snapshots.Adopt)...)
	if j.Schedule != "" {
		if _, err := calendar.Parse(j.Schedule); err != nil {
			bad("schedule: %w", err)
		}
	}
	if j.User != "" {
		if err := CheckUser(j.User); err != nil {
			bad("user: %w", err)
		}
	}
	if j.Schedule == "" && j.Jitter+j.Grace != 0 {
		bad("jitter and grace have no effect without a schedule")
	}
	if _, err := j.Scope(); err != nil {
		bad("snapshots: %w", err)
	}
	if j.Snapshots.SkipUnchanged && j.Snapshots.Take == "" {
		bad("snapshots.skip_unchanged has no effect without snapshots.take")
	}
	errs = append(errs, j.Retention.faults("retention")...)
	if n := j.PruneLimit; n != nil && (*n < 0 || *n > maxKept) {
		bad("prune_limit = %d: write 0 to %d", *n, maxKept)
	}
	if j.Parallel < 0 || j.Parallel > way.MaxParallel {
		bad("parallel = %d: write 1 to %d", j.Parallel, way.MaxParallel)
	}
	if j.Retries != nil && (*j.Retries < 0 || *j.Retries > way.MaxRetries) {
		bad("retries = %d: write 0 to %d", *j.Retries, way.MaxRetries)
	}
	errs = append(errs, checkWord("holds", j.Holds, "both", "source", "target", "none")...)
	errs = append(errs, checkWord("bookmarks", j.Bookmarks, "sent", "none")...)
	errs = append(errs, j.Transfer.faults("")...)
	errs = append(errs, j.targetFaults()...)
	if len(j.Targets) == 0 {
		errs = append(errs, j.aloneFaults()...)
	}
	for i := range j.Before {
		errs = append(errs, j.Before[i].faults("before")...)
	}
	for i := range j.After {
		errs = append(errs, j.After[i].faults("after")...)
		if j.After[i].OnFailure != "" {
			bad("after.on_failure has no effect: the run is over by then")
		}
	}
	if j.Alert != nil {
		errs = append(errs, j.Alert.faults("alert")...)
		if j.Alert.OnFailure != "" {
			bad("alert.on_failure has no effect: the run is over by then")
		}
	}
	return errs
}

func (j *Job) targetFaults() []error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	seen, places := map[string]bool{}, map[string]string{}
	for i := range j.Targets {
		t := &j.Targets[i]
		at := fmt.Sprintf("target %q: ", t.Name)
		if !plainWord(t.Name) {
			bad(`%sname: write letters, digits, "-" and "_", at most 48`, at)
		}
		if seen[t.Name] {
			bad("two targets are named %q", t.Name)
		}
		seen[t.Name] = true
		if t.Name == SourceSide {
			bad("a target cannot be named %q: that is what records and prune call the job's own side", t.Name)
		}
		if same, ok := places[t.To]; ok {
			bad("targets %q and %q are one place, %s: two streams would meet there", same, t.Name, t.To)
		}
		places[t.To] = t.Name
		errs = append(errs, checkEndpoint(at+"to", t.To, true)...)
		if to := j.ontoItself(t); to != "" {
			bad("%sto %q is %s, which is part of the source", at, t.To, to)
		}
		errs = append(errs, t.Retention.faults(at+"retention")...)
		if t.Transfer != nil {
			errs = append(errs, t.Transfer.faults(at)...)
		}
		if err := j.between(t); err != nil {
			errs = append(errs, fault.Usagef(Keys(fault.HintOf(err)), "%s%s", at, Keys(err.Error())))
		}
		for name, value := range t.Properties.Set {
			if err := zfs.CheckProperty(name); err != nil {
				bad("%sproperties.set: %w", at, err)
			}
			if err := zfs.CheckValue(name, value); err != nil {
				bad("%sproperties.set: %w", at, err)
			}
			if slices.Contains(t.Properties.Exclude, name) {
				bad("%sproperties: %s is both set and excluded", at, name)
			}
		}
		for _, name := range t.Properties.Exclude {
			if err := zfs.CheckProperty(name); err != nil {
				bad("%sproperties.exclude: %w", at, err)
			}
		}
	}
	return errs
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
	return j.TransferTo(t).Between(from.Local(), to.Local())
}

// aloneFaults are what is wrong with a job for the lack of a target.
func (j *Job) aloneFaults() []error {
	var errs []error
	if j.Snapshots.Take == "" && j.Retention == nil {
		errs = append(errs, fault.Usagef("write a [[job.target]] to send to, snapshots.take to take snapshots, or [job.retention] to remove them",
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
		{"snapshots.latest_only", j.Snapshots.LatestOnly},
		{"parallel", j.Parallel != 0},
		{"retries", j.Retries != nil},
		{"holds", j.Holds != ""},
		{"bookmarks", j.Bookmarks != ""},
		{"transfer (but for rsh, no_bootstrap and wire = \"nc\")", !reflect.DeepEqual(transfer, Transfer{})},
	} {
		if k.set {
			errs = append(errs, fmt.Errorf("%s has no effect without a [[job.target]]", k.key))
		}
	}
	return errs
}

func plainWord(s string) bool {
	return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,47}$`).MatchString(s)
}

func checkEndpoint(key, s string, target bool) []error {
	if s == "" {
		return []error{fmt.Errorf("%s is missing", key)}
	}
	e, err := endpoint.Parse(s)
	if err != nil {
		return []error{fmt.Errorf("%s: %w", key, err)}
	}
	name := e.Name
	if target {
		name = strings.TrimSuffix(name, "/")
	}
	if e.Path() {
		return []error{fmt.Errorf("%s: %q is a path; write the name of a dataset", key, s)}
	}
	if _, err := zfs.ParseDataset(name); err != nil {
		return []error{fmt.Errorf("%s: %w", key, err)}
	}
	return nil
}

func checkPatterns(key string, patterns []string) []error {
	var errs []error
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			errs = append(errs, fmt.Errorf("%s: %q is not a pattern; it may hold *, ? and [a-z]", key, p))
		}
	}
	return errs
}

func checkWord(key, value string, words ...string) []error {
	if value == "" || slices.Contains(words, value) {
		return nil
	}
	return []error{fmt.Errorf("%s = %q: write one of %s", key, value, strings.Join(words, ", "))}
}

func (g *Grid) faults(at string) []error {
	if g == nil {
		return nil
	}
	var errs []error
	for _, r := range g.rules() {
		if r.count < 0 || r.count > maxKept {
			errs = append(errs, fmt.Errorf("%s.%s = %d: write 0 to %d", at, r.name, r.count, maxKept))
		}
	}
	for _, a := range g.Also {
		errs = append(errs, checkPatterns(at+".also.names", a.Names)...)
		if len(a.Names) == 0 || a.Last < 0 || a.Last > maxKept || a.Last == 0 && a.Age == 0 {
			errs = append(errs, fmt.Errorf("%s.also: write names, and last (0 to %d), age or both", at, maxKept))
		}
	}
	if g.Empty() {
		errs = append(errs, fmt.Errorf("%s keeps nothing; leave the table out to keep everything", at))
	}
	return errs
}

func (h *Hook) faults(at string) []error {
	errs := checkWord(at+".on_failure", h.OnFailure, "stop", "continue")
	if len(h.Command) == 0 || h.Command[0] == "" {
		errs = append(errs, fmt.Errorf(`%s: command is missing; write ["/path/of/command", "argument"]`, at))
	} else if !path.IsAbs(h.Command[0]) {
		errs = append(errs, fmt.Errorf("%s: command %q is no absolute path: a timer has no PATH of yours", at, h.Command[0]))
	}
	return errs
}

func (t *Transfer) faults(at string) []error {
	var errs []error
	for _, err := range t.Way.Faults(way.JobFile) {
		errs = append(errs, fault.Usagef(Keys(fault.HintOf(err)), "%s%s", at, Keys(err.Error())))
	}
	for _, id := range t.SkipChecks {
		if !preflight.Skippable(id) {
			errs = append(errs, fmt.Errorf("%stransfer.skip_checks: there is no check %q; docs/checks.md lists them", at, id))
		}
	}
	return errs
}
