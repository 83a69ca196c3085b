package jobfile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	toml "github.com/pelletier/go-toml/v2"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/transport"
)

// Parse reads and validates the job file of a single host.
func Parse(name string, text []byte) (*replicate.File, error) {
	inv, err := Read(name, text)
	if err != nil {
		return nil, err
	}
	return inv.For("")
}

// Inventory is a job file for all hosts that share it.
type Inventory struct {
	name  string          // file name for messages
	file  *replicate.File // before templates and variables
	lines map[string][]int
	keys  []map[string]int // lines of the keys of each job
	// jobs are the job tables with their templates applied. It is nil if the file is not shared:
	// then file is the only part.
	jobs   []map[string]any
	groups []*group
	vars   map[string]bool // of any group
}

// Read reads a job file for all its hosts. name is the file name for messages. Unknown keys, and
// errors in hosts and templates, are errors of class fault.Usage. The message for an unknown key has
// its line and a similar key.
func Read(name string, text []byte) (*Inventory, error) {
	f := &replicate.File{}
	if err := decode(text, f); err != nil {
		return nil, syntaxError(name, err)
	}
	inv := &Inventory{name: name, file: f, vars: map[string]bool{"host": true}}
	inv.lines, inv.keys = headers(text)
	if !inv.isShared() && !strings.Contains(string(text), "{host}") {
		return inv, nil
	}
	var raw struct {
		Jobs      []map[string]any `toml:"job"`
		Templates []map[string]any `toml:"template"`
	}
	if err := toml.Unmarshal(text, &raw); err != nil {
		return nil, syntaxError(name, err)
	}
	errs := inv.readHosts()
	templates, more := inv.readTemplates(raw.Templates)
	errs = append(errs, more...)
	inv.jobs = []map[string]any{}
	for i, job := range raw.Jobs {
		merged, err := inv.withTemplates(i, job, templates)
		if err == nil {
			err = errors.Join(inv.knownHosts(i, merged), inv.knownVariables(i, merged))
		}
		inv.jobs = append(inv.jobs, merged)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fault.Usagef(fault.HintOf(err), "%w", err)
	}
	return inv, nil
}

// isShared reports whether the file has hosts or templates.
func (inv *Inventory) isShared() bool {
	return len(inv.groups)+len(inv.file.Hosts)+len(inv.file.Templates) > 0 ||
		slices.ContainsFunc(inv.file.Jobs, func(j replicate.Job) bool { return j.Template != nil || j.Hosts != nil })
}

// For returns the validated part of a host. The name may include a domain. If the file has no
// [[host]], every host has all jobs.
func (inv *Inventory) For(name string) (*replicate.File, error) {
	if inv.jobs == nil {
		return inv.validated(inv.file, locations{name: inv.name, lines: inv.lines["job"], keys: inv.keys})
	}
	h := &member{name: ShortName(name)}
	switch {
	case h.name != "" && !hostName.MatchString(h.name):
		return nil, fault.Usagef("name this host: --host NAME", `host %q: a name in a job file has letters, digits, "-" and "_"`, h.name)
	case len(inv.groups) > 0:
		if h = inv.member(name); h == nil {
			return nil, inv.unknownHost(name)
		}
	case h.name != "":
		h.vars = map[string]string{"host": h.name}
	}
	return inv.part(h)
}

// Part is the part of a host, or the error in it.
type Part struct {
	Host string          // name for messages
	File *replicate.File // nil if Err is set
	Err  error
}

// Parts returns the parts of all named hosts, and one for each group with patterns. The slice is
// empty if the file has no [[host]].
func (inv *Inventory) Parts() (out []Part) {
	for _, h := range inv.members() {
		p := Part{Host: h.name}
		if h.anyOf != "" {
			p.Host = h.String()
		}
		p.File, p.Err = inv.part(h)
		out = append(out, p)
	}
	return out
}

func (inv *Inventory) part(h *member) (*replicate.File, error) {
	at := locations{name: inv.name}
	f := &replicate.File{Metrics: inv.file.Metrics, Notify: inv.file.Notify, Host: h.name}
	if inv.file.Jobs != nil {
		f.Jobs = []replicate.Job{}
	}
	var errs []error
	for i, job := range inv.jobs {
		if !inv.hasJob(h, job) {
			f.Elsewhere = append(f.Elsewhere, inv.namesElsewhere(job)...)
			continue
		}
		suffix := ""
		if len(inv.groups) > 0 {
			suffix = " of host " + quoted(h.name)
		}
		if h.anyOf != "" {
			suffix = " of a host of group " + quoted(h.anyOf)
		}
		j, err := inv.buildJob(job, h)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s%w", inv.jobAt(i), err))
			continue
		}
		f.Jobs = append(f.Jobs, *j)
		at.suffixes = append(at.suffixes, inv.templateSuffix(i)+suffix)
		if i < len(inv.lines["job"]) {
			keys := maps.Clone(inv.keys[i])
			if job["template"] != nil { // the job may have other targets first, from its templates
				maps.DeleteFunc(keys, func(key string, _ int) bool { return strings.HasPrefix(key, "target[") })
			}
			at.lines, at.keys = append(at.lines, inv.lines["job"][i]), append(at.keys, keys)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fault.Usagef(fault.HintOf(err), "%w", err)
	}
	return inv.validated(f, at)
}

// buildJob converts a job table to the job of a host.
func (inv *Inventory) buildJob(job map[string]any, h *member) (*replicate.Job, error) {
	table := maps.Clone(job)
	delete(table, "template")
	delete(table, "hosts")
	missing := map[string]bool{}
	filled := substitute(table, func(name string) (string, bool) {
		value, ok := h.vars[name]
		if !ok && inv.vars[name] {
			missing[name] = true
		}
		return value, ok
	})
	if missing["host"] {
		return nil, fault.Usagef("name it: --host NAME", "{host} needs the name of this host, which is unknown")
	}
	if len(missing) > 0 {
		name := slices.Sorted(maps.Keys(missing))[0]
		return nil, fault.Usagef(fmt.Sprintf("write vars = { %s = \"...\" } into a [[host]] that %s is in", name, h), "host %s has no {%s}", h, name)
	}
	text, err := toml.Marshal(filled)
	if err != nil {
		return nil, err
	}
	j := &replicate.Job{}
	if err := decode(text, j); err != nil {
		return nil, err
	}
	return j, nil
}

// substitute replaces each "{name}" in the strings of a TOML value.
func substitute(v any, value func(name string) (string, bool)) any {
	switch v := v.(type) {
	case string:
		return variable.ReplaceAllStringFunc(v, func(s string) string {
			if text, ok := value(s[1 : len(s)-1]); ok {
				return text
			}
			return s
		})
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = substitute(v[i], value)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for k := range v {
			out[k] = substitute(v[k], value)
		}
		return out
	}
	return v
}

func (inv *Inventory) validated(f *replicate.File, at locations) (*replicate.File, error) {
	if err := validate(f, at); err != nil {
		return nil, fault.Usagef(fault.HintOf(err), "%w", err)
	}
	return resolved(f), nil
}

// resolved returns a copy of a valid file in which each job has its complete Notify, a target for each disk, and transfer
// options in their normal form.
func resolved(f *replicate.File) *replicate.File {
	r, jobs := *f, jobsByCheck(f)
	r.Jobs = slices.Clone(f.Jobs)
	for i := range r.Jobs {
		j := &r.Jobs[i]
		j.Notify = notifyOf(f, j)
		if j.Notify.HasPing() {
			j.Notify.Shared = len(jobs[check(j.Notify)]) > 1
		}
		byDisk(j)
		j.Transfer.Settings.Check(transport.JobFile) // normalizes values
		for k := range j.Targets {
			if t := &j.Targets[k]; t.Transfer != nil {
				own := *t.Transfer
				own.Settings.Check(transport.JobFile)
				t.Transfer = &own
			}
		}
	}
	return &r
}

// jobAt returns a message prefix with the place and name of a job.
func (inv *Inventory) jobAt(i int) string {
	p := locations{name: inv.name, lines: inv.lines["job"]}
	return fmt.Sprintf("%s%s%s: ", p.job(i), labeled("job", inv.file.Jobs[i].Name, i), inv.templateSuffix(i))
}

// templateSuffix returns a message suffix that names the templates of a job.
func (inv *Inventory) templateSuffix(i int) string {
	names, err := templateNames(inv.file.Jobs[i].Template)
	if err != nil || len(names) == 0 {
		return ""
	}
	return " by template " + quoted(names...)
}

// quoted returns a list of quoted names.
func quoted(names ...string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(out, ", ")
}

// namesElsewhere returns the names that a job of other hosts has there.
func (inv *Inventory) namesElsewhere(job map[string]any) (out []string) {
	name, _ := job["name"].(string)
	if !strings.Contains(name, "{") {
		return []string{name}
	}
	for _, h := range inv.members() {
		if inv.hasJob(h, job) {
			out = append(out, h.text(name))
		}
	}
	return out
}

// JobsOf returns the names of a host's jobs, also of invalid ones. It returns nil for an unknown
// host.
func (inv *Inventory) JobsOf(host string) (out []string) {
	h := inv.member(host)
	for _, job := range inv.jobs {
		if h != nil && inv.hasJob(h, job) {
			out = append(out, h.text(job["name"]))
		}
	}
	return out
}
