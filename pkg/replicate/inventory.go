package replicate

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	toml "github.com/pelletier/go-toml/v2"

	"zxfer/pkg/fault"
)

// Inventory is a job file as it is written, for all hosts that share it. Each
// takes its part of it by its name.
type Inventory struct {
	name  string // the file's, for messages
	file  *File  // as it was read
	lines map[string][]int
	// jobs are what the jobs say with their templates, as tables of TOML; nil
	// where the file has one part, and it is as it was read.
	jobs   []map[string]any
	groups []*group
	vars   map[string]bool // that any group has
}

// Read reads a job file for all its hosts. name is the file's, for messages. A
// key that the file format does not have is an error, with its line and what was
// probably meant; and so is what is wrong with hosts and templates, or with two
// hosts that would write to one place. Errors are of class fault.Usage.
func Read(name string, text []byte) (*Inventory, error) {
	f := &File{}
	if err := decode(text, f); err != nil {
		return nil, syntax(name, err)
	}
	inv := &Inventory{name: name, file: f, lines: headers(text), vars: map[string]bool{"host": true}}
	if !inv.shared() && !strings.Contains(string(text), "{host}") {
		return inv, nil
	}
	var raw struct {
		Jobs      []map[string]any `toml:"job"`
		Templates []map[string]any `toml:"template"`
	}
	if err := toml.Unmarshal(text, &raw); err != nil {
		return nil, syntax(name, err)
	}
	errs := inv.readHosts()
	templates, more := inv.readTemplates(raw.Templates)
	errs = append(errs, more...)
	inv.jobs = []map[string]any{}
	for i, job := range raw.Jobs {
		merged, err := inv.whole(i, job, templates)
		if err == nil {
			err = errors.Join(inv.knownHosts(i, merged), inv.knownVariables(i, merged))
		}
		inv.jobs = append(inv.jobs, merged)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fault.Usagef(fault.HintOf(err), "%w", err)
	}
	if err := inv.conflicts(); err != nil {
		return nil, fault.Usagef(fault.HintOf(err), "%w", err)
	}
	return inv, nil
}

// shared tells whether the file has parts, or templates.
func (inv *Inventory) shared() bool {
	return len(inv.groups)+len(inv.file.Hosts)+len(inv.file.Templates) > 0 ||
		slices.ContainsFunc(inv.file.Jobs, func(j Job) bool { return j.Template != nil || j.Hosts != nil })
}

// Parse reads and validates a job file that is one host's alone.
func Parse(name string, text []byte) (*File, error) {
	inv, err := Read(name, text)
	if err != nil {
		return nil, err
	}
	return inv.For("")
}

// For is the part of a host, validated. The name is the host's own, which may
// have its domain behind it; where the file has no [[host]] any host takes all.
func (inv *Inventory) For(name string) (*File, error) {
	if inv.jobs == nil {
		return inv.checked(inv.file, places{name: inv.name, lines: inv.lines["job"]})
	}
	h := &member{name: ShortName(name)}
	switch {
	case h.name != "" && !hostName.MatchString(h.name):
		return nil, fault.Usagef("say which host this is: --host NAME", `host %q: a name in a job file has letters, digits, "-" and "_"`, h.name)
	case len(inv.groups) > 0:
		if h = inv.member(name); h == nil {
			return nil, inv.unknown(name)
		}
	case h.name != "":
		h.vars = map[string]string{"host": h.name}
	}
	return inv.part(h)
}

// Part is what a host takes of a job file, or why that is wrong.
type Part struct {
	Host string // as a message names it
	File *File  // nil with Err
	Err  error
}

// Parts are those of all hosts that the file names; of those that it knows by
// patterns alone one for each group stands for any. None where it has no [[host]].
func (inv *Inventory) Parts() (out []Part) {
	for _, h := range inv.members() {
		p := Part{Host: h.name}
		if h.anyOf != "" {
			p.Host = h.String()
		}
		if len(out) == 0 || out[len(out)-1].Host != p.Host {
			p.File, p.Err = inv.part(h)
			out = append(out, p)
		}
	}
	return out
}

func (inv *Inventory) part(h *member) (*File, error) {
	at := places{name: inv.name}
	f := &File{Metrics: inv.file.Metrics, Host: h.name}
	if inv.file.Jobs != nil {
		f.Jobs = []Job{}
	}
	var errs []error
	for i, job := range inv.jobs {
		if !inv.takes(h, job) {
			f.elsewhere = append(f.elsewhere, inv.namesElsewhere(job)...)
			continue
		}
		whose := ""
		if len(inv.groups) > 0 {
			whose = " of host " + quoted(h.name)
		}
		if h.anyOf != "" {
			whose = " of a host of group " + quoted(h.anyOf)
		}
		j, err := inv.fill(job, h)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s%w", inv.jobAt(i), err))
			continue
		}
		f.Jobs = append(f.Jobs, *j)
		at.whose = append(at.whose, inv.by(i)+whose)
		if i < len(inv.lines["job"]) {
			at.lines = append(at.lines, inv.lines["job"][i])
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fault.Usagef(fault.HintOf(err), "%w", err)
	}
	return inv.checked(f, at)
}

func (inv *Inventory) checked(f *File, at places) (*File, error) {
	if err := f.validate(at); err != nil {
		return nil, fault.Usagef(fault.HintOf(err), "%w", err)
	}
	return f, nil
}

// fill makes a host's job of a table.
func (inv *Inventory) fill(job map[string]any, h *member) (*Job, error) {
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
		return nil, fault.Usagef("say what it is: --host NAME", "{host} is this host's name, which is not known")
	}
	if len(missing) > 0 {
		name := slices.Sorted(maps.Keys(missing))[0]
		return nil, fault.Usagef(fmt.Sprintf("write vars = { %s = \"...\" } into a [[host]] that %s is in", name, h), "host %s has no {%s}", h, name)
	}
	text, err := toml.Marshal(filled)
	if err != nil {
		return nil, err
	}
	j := &Job{}
	if err := decode(text, j); err != nil {
		return nil, err
	}
	return j, nil
}

// substitute fills in "{name}" of all texts of a value.
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

// jobAt is where a job is, and its name, before a message.
func (inv *Inventory) jobAt(i int) string {
	p := places{name: inv.name, lines: inv.lines["job"]}
	return fmt.Sprintf("%sjob %q%s: ", p.job(i), inv.file.Jobs[i].Name, inv.by(i))
}

// by names the templates of a job behind its name.
func (inv *Inventory) by(i int) string {
	names, err := templatesOf(inv.file.Jobs[i].Template)
	if err != nil || len(names) == 0 {
		return ""
	}
	return " by template " + quoted(names...)
}

// quoted lists names in a message.
func quoted(names ...string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(out, ", ")
}

// Elsewhere tells whether a job of that name is other hosts', and not this one's.
func (f *File) Elsewhere(name string) bool {
	return f.Find(name) == nil && slices.Contains(f.elsewhere, name)
}

// Has tells whether the file has a job of that name, for this host or another.
func (f *File) Has(name string) bool { return f.Find(name) != nil || f.Elsewhere(name) }

// namesElsewhere are what a job that is not this host's may be called on others.
func (inv *Inventory) namesElsewhere(job map[string]any) (out []string) {
	name, _ := job["name"].(string)
	if !strings.Contains(name, "{") {
		return []string{name}
	}
	for _, h := range inv.members() {
		if inv.takes(h, job) {
			out = append(out, h.text(name))
		}
	}
	return out
}

// JobsOf are the names of a host's jobs, whatever else is wrong with them; none of a
// host that the file does not know.
func (inv *Inventory) JobsOf(host string) (out []string) {
	h := inv.member(host)
	for _, job := range inv.jobs {
		if h != nil && inv.takes(h, job) {
			out = append(out, h.text(job["name"]))
		}
	}
	return out
}

// unknown is why a host has no part.
func (inv *Inventory) unknown(name string) error {
	said, first := cmp.Or(ShortName(name), "without a name"), inv.Names()
	more := ""
	if len(first) > 10 {
		first, more = first[:10], fmt.Sprintf(" and %d more", len(first)-10)
	}
	for _, g := range inv.groups {
		if len(g.open) > 0 {
			more += fmt.Sprintf("; those of group %q are any like %s", g.said.Name, strings.Join(g.open, ", "))
		}
	}
	return fault.Usagef("put it into the names of a [[host]], or say which one this is: --host NAME\nthe file has: "+strings.TrimPrefix(strings.Join(first, ", ")+more, "; "),
		"%s: host %q is in no [[host]] of this file", inv.name, said)
}
