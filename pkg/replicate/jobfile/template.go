package jobfile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/fault"
)

// readTemplates checks the templates of the file and returns their tables by name.
func (inv *Inventory) readTemplates(raw []map[string]any) (map[string]map[string]any, []error) {
	out := map[string]map[string]any{}
	var errs []error
	at := locations{name: inv.name, lines: inv.lines["template"]}
	for i := range raw {
		f := faults{at: fmt.Sprintf("%s%s: ", at.job(i), labeled("template", inv.file.Templates[i].Name, i))}
		name := inv.file.Templates[i].Name
		f.checkName(name)
		if inv.file.Templates[i].Template != nil {
			f.add("", fault.Usagef("list both in the job: template = [\"base\", \"more\"]", "a template cannot have a template"))
		}
		if out[name] != nil {
			f.addf("", "two templates have this name")
		}
		f.lowerCase(raw[i])
		errs = append(errs, f.all()...)
		out[name] = maps.Clone(raw[i])
		delete(out[name], "name")
	}
	return out, errs
}

// lowerCase rejects keys with capitals: the decoder would accept them, but they would not override
// a template.
func (f *faults) lowerCase(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if k != strings.ToLower(k) {
				f.addf("", "key %q: must be lower case", k)
			}
			f.lowerCase(v[k])
		}
	case []any:
		for _, e := range v {
			f.lowerCase(e)
		}
	}
}

// withTemplates returns a job table with its templates applied. Later templates override earlier
// ones, and the job overrides all.
func (inv *Inventory) withTemplates(i int, job map[string]any, templates map[string]map[string]any) (map[string]any, error) {
	names, err := templateNames(inv.file.Jobs[i].Template)
	f := faults{at: inv.jobAt(i)}
	f.add("template", err)
	f.lowerCase(job)
	out := map[string]any{}
	for _, n := range names {
		t := templates[n]
		if t == nil {
			hint := "write [[template]] with this name"
			if len(templates) > 0 {
				hint += "; the file has: " + strings.Join(slices.Sorted(maps.Keys(templates)), ", ")
			}
			f.add("template", fault.Usagef(hint, "there is no template %q", n))
		}
		out = mergeTables(out, t)
	}
	return mergeTables(out, job), errors.Join(f.all()...)
}

// templateNames returns the template names in a job's template key: a string or an array.
func templateNames(v any) ([]string, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		return []string{v}, nil
	case []any:
		var out []string
		for _, e := range v {
			s, ok := e.(string)
			if !ok {
				return nil, errTemplate
			}
			out = append(out, s)
		}
		return out, nil
	}
	return nil, errTemplate
}

var errTemplate = errors.New(`template must be the name of a [[template]], or an array of names`)

// mergeTables returns lower with the keys of upper on top. It merges tables by key and targets by
// name, and replaces other arrays.
func mergeTables(lower, upper map[string]any) map[string]any {
	out := maps.Clone(lower)
	if out == nil {
		out = map[string]any{}
	}
	for k, v := range upper {
		was := out[k]
		switch v := v.(type) {
		case map[string]any:
			if was, ok := was.(map[string]any); ok {
				out[k] = mergeTables(was, v)
				continue
			}
		case []any:
			if was, ok := was.([]any); ok && k == "target" && len(v) > 0 {
				out[k] = mergeTargets(was, v)
				continue
			}
		}
		out[k] = v
	}
	return out
}

// mergeTargets merges targets by name and appends new ones.
func mergeTargets(lower, upper []any) []any {
	out := slices.Clone(lower)
	for _, v := range upper {
		t, _ := v.(map[string]any)
		at := slices.IndexFunc(out, func(o any) bool { o2, _ := o.(map[string]any); return o2 != nil && t != nil && o2["name"] == t["name"] })
		if at < 0 {
			out = append(out, v)
			continue
		}
		was, _ := out[at].(map[string]any)
		out[at] = mergeTables(was, t)
	}
	return out
}
