package jobfile

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/transport"
	"zxfer/pkg/zfs"
)

// faults collects errors in a part of a job file.
type faults struct {
	at   string // prefix of every message
	path string // prefix of every key, such as "target[0]."
	errs []*keyError
}

// all returns the errors without their keys.
func (f *faults) all() (out []error) {
	for _, err := range f.errs {
		out = append(out, err.error)
	}
	return out
}

// add adds the error in the value of a key, "" = none. It ignores nil.
func (f *faults) add(key string, err error) {
	if err != nil {
		f.errs = append(f.errs, &keyError{fmt.Errorf("%s%w", f.at, err), f.path + key})
	}
}

// addSetting adds the error of package transport about an option.
func (f *faults) addSetting(err error) { f.add(replicate.KeyOf(err), replicate.InKeys(err)) }

// keyError is an error in the value of a key of a job.
type keyError struct {
	error
	key string // such as "target[0].to"
}

func (e *keyError) Unwrap() error { return e.error }

// labeled returns a kind of table with its name, or with its number from 1 if it has no name.
func labeled(kind, name string, i int) string {
	if name == "" {
		return fmt.Sprintf("%s %d", kind, i+1)
	}
	return fmt.Sprintf("%s %q", kind, name)
}

func (f *faults) addf(key, format string, args ...any) { f.add(key, fmt.Errorf(format, args...)) }

// checkName checks the name of a job or target.
func (f *faults) checkName(name string) {
	if name == "" {
		f.addf("name", "name is missing")
	} else if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,47}$`).MatchString(name) {
		f.addf("name", `name %q: write 1 to 48 letters, digits, "-" and "_", first a letter or digit`, name)
	}
}

func (f *faults) oneOf(key, value string, words ...string) {
	if value != "" && !slices.Contains(words, value) {
		f.addf(key, "%s = %q: write one of %s", key, value, strings.Join(words, ", "))
	}
}

func (f *faults) choice(c *replicate.Selection, recursive bool) {
	if !recursive && (len(c.Include)+len(c.Exclude) > 0 || c.Property != "") {
		f.addf("include", "include, exclude and property have no effect without recursive = true")
	}
	f.patterns("include", c.Include)
	f.patterns("exclude", c.Exclude)
	name, value, valued := strings.Cut(c.Property, "=")
	switch {
	case c.Property == "":
	case !zfs.UserProperty(name) || valued && value == "":
		f.addf("property", `property %q: write NAME=VALUE or NAME of a user property, such as "zxfer:job=home"`, c.Property)
	default: // the user may set any value
		if err := zfs.CheckProperty(name); err != nil {
			f.addf("property", "property: %w", err)
		}
	}
}

func (f *faults) sent(s *replicate.SnapshotLimits) {
	f.number("snapshots.newest", s.Newest, 0, maxKept)
	if s.LatestOnly && (s.Newest > 0 || s.Since > 0) {
		f.addf("snapshots.latest_only", "snapshots.latest_only cannot be combined with newest or since")
	}
}

func (f *faults) first(first plan.First) {
	f.oneOf("first", string(first), plan.FirstValues()...)
}

func (f *faults) number(key string, n, low, high int) {
	if n < low || n > high {
		f.addf(key, "%s = %d: write %d to %d", key, n, low, high)
	}
}

func (f *faults) patterns(key string, patterns []string) {
	for _, p := range patterns {
		if _, err := plan.ParsePattern(p); err != nil {
			f.addf(key, "%s: %w", key, err)
		}
	}
}

func (f *faults) endpoint(key, s string, target bool) {
	if s == "" {
		f.addf(key, "%s is missing", key)
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
	case e.WithoutPool() != "":
		err = fault.Usagef("for a host, write "+e.WithoutPool(), "%q has no pool", s)
	default:
		_, err = zfs.ParseDataset(name)
	}
	if err != nil {
		f.addf(key, "%s: %w", key, err)
	}
}

func (f *faults) grid(key string, g *retention.Grid) {
	if g == nil {
		return
	}
	for _, r := range g.Rules() {
		f.number(key+"."+r.Name, r.Count, 0, maxKept)
	}
	for _, a := range g.Also {
		f.patterns(key+".also.names", a.Names)
		if len(a.Names) == 0 || a.Last < 0 || a.Last > maxKept || a.Last == 0 && a.Age == 0 {
			f.addf(key+".also", "%s.also: write names, and last (0 to %d), age or both", key, maxKept)
		}
	}
	if g.Empty() {
		f.addf(key, "%s keeps nothing; to keep everything, omit the table", key)
	}
}

func (f *faults) mirror(j *replicate.Job, t *replicate.Target) {
	if t.Mirror == nil {
		return
	}
	f.number("mirror.limit", t.Mirror.LimitOrDefault(), 0, maxKept)
	if t.Retention != nil && t.Mirror.Gone == 0 {
		f.addf("mirror", "mirror and retention cannot both select snapshots; with retention, only mirror.gone has an effect")
	}
	if t.Mirror.Gone != 0 && !j.Recursive {
		f.addf("mirror.gone", "mirror.gone has no effect without recursive = true")
	}
	if t.Mirror.Gone != 0 && (j.Holds == "none" || j.Holds == "source") {
		f.addf("mirror.gone", "mirror.gone requires holds on the target: write holds = \"both\" or \"target\"")
	}
}

func (f *faults) hook(key string, h *replicate.Hook) {
	f.oneOf(key+".on_failure", h.OnFailure, "stop", "continue")
	if len(h.Command) == 0 || h.Command[0] == "" {
		f.addf(key, `%s: command is missing; write ["/path/of/command", "argument"]`, key)
	} else if !path.IsAbs(h.Command[0]) {
		f.addf(key, "%s: command %q is not an absolute path", key, h.Command[0])
	}
	if key != "before" && h.OnFailure != "" {
		f.addf(key+".on_failure", "%s.on_failure has no effect after the run", key)
	}
}

func (f *faults) drill(d *replicate.Drill) {
	if d == nil {
		return
	}
	if _, err := calendar.Parse(d.Schedule); d.Schedule != "" && err != nil {
		f.addf("drill.schedule", "drill.schedule: %w", err)
	}
	if len(d.Command) > 0 && !path.IsAbs(d.Command[0]) {
		f.addf("drill.command", "drill.command: %q is not an absolute path on the copy's host", d.Command[0])
	}
	if len(d.Command) == 0 && (d.Writable || d.Timeout != 0) {
		f.addf("drill.writable", "drill.writable and drill.timeout have no effect without drill.command")
	}
	if d.KeyFile != "" && CheckPath(d.KeyFile) != nil {
		f.addf("drill.key_file", "drill.key_file: %q is not an absolute path on the copy's host", d.KeyFile)
	}
}

func (f *faults) transfer(t *replicate.Transfer) {
	settings := t.Settings // Check normalizes values
	for _, err := range settings.Check(transport.JobFile) {
		f.addSetting(err)
	}
	for _, id := range t.SkipChecks {
		if !preflight.Skippable(id) {
			f.addf("transfer.skip_checks", "transfer.skip_checks: there is no check %q; zxfer help checks lists them", id)
		}
	}
}

func (f *faults) properties(p *replicate.Properties) {
	f.carry(p.Carry)
	for name, value := range p.Set {
		err := zfs.CheckProperty(name)
		if err == nil {
			err = zfs.CheckValue(name, value)
		}
		if err != nil {
			f.addf("properties.set", "properties.set: %w", err)
		}
		if slices.Contains(p.Exclude, name) {
			f.addf("properties", "properties: %s is both set and excluded", name)
		}
	}
	for _, name := range p.Exclude {
		if err := zfs.CheckProperty(name); err != nil {
			f.addf("properties.exclude", "properties.exclude: %w", err)
		}
	}
}

// carry checks properties.carry, which must be true, false or an array of names.
func (f *faults) carry(carry any) {
	names, array := carry.([]any)
	if _, word := carry.(bool); !word && !array && carry != nil {
		f.addf("properties.carry", `properties.carry = %v: write true, or an array of names, such as ["org.example:note"]`, carry)
	}
	for _, n := range names {
		name, ok := n.(string)
		if !ok {
			f.addf("properties.carry", "properties.carry: %v is not the name of a property in quotes", n)
			continue
		}
		if err := zfs.CheckNamed(name); err != nil {
			f.addf("properties.carry", "properties.carry: %w", err)
		}
	}
}

// These rules check values for other programs' files (units, crontab, authorized_keys). Packages
// zfs and calendar check dataset names and schedules. A valid value is one word on one line in any
// of these files, regardless of their special characters, such as quotes, %, $ and ;.

// SanitizeName replaces characters that are invalid in names of jobs and targets with "-".
func SanitizeName(s string) string {
	return regexp.MustCompile("[^A-Za-z0-9_-]").ReplaceAllString(s, "-")
}

// CheckUser returns an error if user is not a valid account name.
//
// https://systemd.io/USER_NAMES
func CheckUser(user string) error {
	if len(user) > 256 || !regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.@-]*$`).MatchString(user) {
		return fault.Usagef(`use letters, digits, "_", "-", "." and "@"`, "%q is not the name of an account", user)
	}
	return nil
}

// CheckPath returns an error unless p is an absolute path of letters, digits, blanks and a few
// signs without special meaning. The caller must quote blanks.
func CheckPath(p string) error {
	odd := func(r rune) bool {
		return r == utf8.RuneError || !unicode.In(r, unicode.L, unicode.M, unicode.N) && !strings.ContainsRune(" /._-+@,:=~", r)
	}
	if !path.IsAbs(p) || strings.ContainsFunc(p, odd) {
		return fault.Usagef(`use a path of letters, digits, "/", ".", "_", "-", "+", "@", ",", ":", "=", "~"`,
			"%q is not an absolute path of plain characters", p)
	}
	return nil
}
