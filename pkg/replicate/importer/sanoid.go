package importer

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
)

// policy is the effective configuration of sanoid for a section's dataset.
type policy struct {
	*section
	path      string
	values    map[string]setting // effective values that are set in the file
	recursive bool
	from      []*section // the templates, then the section
	outer     *policy    // the closest recursive policy above
	draft     *draft     // nil if the policy makes no job
}

func (p *policy) number(key string) int {
	if n, err := strconv.Atoi(p.values[key].value); err == nil {
		return n
	}
	return sanoidDefaults()[key]
}

// sanoidDefaults returns sanoid's default settings.
//
// https://github.com/jimsalterjrs/sanoid/blob/v2.1.0/sanoid.defaults.conf
func sanoidDefaults() map[string]int {
	return map[string]int{"frequently": 0, "hourly": 48, "daily": 90, "weekly": 0, "monthly": 6, "yearly": 0,
		"frequent_period": 15, "hourly_min": 0, "daily_hour": 23, "daily_min": 59,
		"weekly_wday": 1, "weekly_hour": 23, "weekly_min": 30,
		"monthly_mday": 1, "monthly_hour": 0, "monthly_min": 0,
		"yearly_mon": 1, "yearly_mday": 1, "yearly_hour": 0, "yearly_min": 0,
		"autosnap": 1, "autoprune": 1}
}

// sanoid makes a job for every section that takes or prunes snapshots.
func (s *state) sanoid(file, text string) error {
	sections, err := parseINI(file, text)
	if err != nil {
		return err
	}
	policies, err := sanoidPolicies(sections)
	if err != nil {
		return err
	}
	first := len(s.drafts)
	for i, p := range policies {
		later := slices.IndexFunc(policies[i+1:], func(l *policy) bool { return l.recursive && isWithin(l.path, p.path) })
		switch {
		case later >= 0:
			s.addEntry(nil, p.where, "["+p.name+"]", "nothing: the later recursive [%s] overrides it, also in sanoid", policies[i+1+later].name)
		case p.outer != nil && strings.EqualFold(p.outer.own("recursive"), "zfs"):
			s.addEntry(nil, p.where, "["+p.name+"]", "nothing: [%s] has recursive = zfs, so its descendants cannot differ", p.outer.name)
		default:
			s.policyJob(p)
		}
	}
	if len(s.drafts) > first {
		s.addEntry(nil, s.drafts[first].where, "sanoid.timer", "before the first run, disable sanoid's timer or cron line for these datasets; to list the snapshots that it will destroy: zxfer replicate check -v")
	}
	s.sanoidUnconverted(policies)
	return nil
}

// sanoidPolicies computes the policy of every section as sanoid's init does: first the defaults or
// the values of a recursive section above, then the templates, then the section's own settings.
func sanoidPolicies(sections []*section) ([]*policy, error) {
	templates := map[string]*section{}
	for _, sec := range sections {
		if name, ok := strings.CutPrefix(sec.name, "template_"); ok {
			templates[name] = sec
		}
	}
	var all []*policy
	for _, sec := range sections {
		if strings.HasPrefix(sec.name, "template_") || sec.name == "version" {
			continue
		}
		p, err := newPolicy(sec, templates, all)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func newPolicy(sec *section, templates map[string]*section, before []*policy) (*policy, error) {
	p := &policy{section: sec, values: map[string]setting{}, recursive: parseBool(sec.own("recursive")) && !parseBool(sec.own("skip_children"))}
	name, where := sec.name, sec.where
	if v, ok := sec.get("path"); ok && v.value != "" {
		name, where = v.value, v.where
	}
	var err error
	if p.path, err = dataset(where, name); err != nil {
		return nil, err
	}
	for _, earlier := range slices.Backward(before) {
		if earlier.recursive && earlier.path != p.path && isWithin(earlier.path, p.path) {
			p.outer = earlier
			p.values = maps.Clone(earlier.values)
			delete(p.values, "process_children_only")
			break
		}
	}
	if t := templates["default"]; t != nil && p.outer == nil {
		p.from = append(p.from, t)
	}
	for _, t := range sec.templates() {
		if templates[t] == nil {
			v, _ := sec.get("use_template")
			return nil, fault.Usagef("", "%s: there is no [template_%s]", v.where, t)
		}
		p.from = append(p.from, templates[t])
	}
	p.from = append(p.from, sec)
	for _, from := range p.from {
		for _, k := range from.keys {
			p.values[k.key] = k
		}
	}
	for key := range sanoidDefaults() {
		v, set := p.values[key]
		if n, err := strconv.Atoi(v.value); set && key != "autosnap" && key != "autoprune" && (err != nil || n < 0 || n > 100_000) {
			return nil, fault.Usagef("", "%s: %s = %q: must be a number from 0 to 100000", v.where, key, v.value)
		}
	}
	return p, nil
}

// parseBool parses a boolean as sanoid does.
func parseBool(s string) bool {
	return !slices.Contains([]string{"", "0", "false", "no", "off"}, strings.ToLower(s))
}

// own returns the section's own value of a key, or "".
func (s *section) own(key string) string {
	v, _ := s.get(key)
	return v.value
}

// templates returns the names of the templates that the section uses.
func (s *section) templates() []string {
	var out []string
	for name := range strings.SplitSeq(s.own("use_template"), ",") {
		if name = strings.TrimSpace(name); name != "" {
			out = append(out, name)
		}
	}
	return out
}

// policyJob adds the draft of a policy and excludes its dataset from the draft of the recursive
// policy above.
func (s *state) policyJob(p *policy) {
	if p.outer != nil {
		if o := p.outer.draft; o != nil {
			o.Exclude = append(o.Exclude, pathBelow(p.outer.path, p.path))
		}
		if !p.recursive {
			s.addEntry(nil, p.where, "["+p.name+"]", "nothing, if it has no descendants; in sanoid [%s] applies to them, so write a job for them", p.outer.name)
		}
	}
	takes := p.enabled("autosnap") && p.finest() != ""
	grid := p.grid()
	if !takes && grid == nil {
		s.addEntry(nil, p.where, "["+p.name+"]", "nothing: it neither takes nor destroys snapshots, so it has no job")
		return
	}
	p.draft = s.add(&draft{where: p.where, preferredName: nameFor(p.path), Job: replicate.Job{
		Source: p.path, Recursive: p.recursive, Schedule: p.schedule(), Retention: grid,
		Snapshots: replicate.Snapshots{Take: replicate.DefaultTemplate, Adopt: []string{sanoidNames}},
	}})
	if !takes {
		p.draft.pruneOnly, p.draft.Snapshots.Take = true, ""
		s.addEntry(p.draft, p.where, "["+p.name+"]", "if zxfer jobs send to it, write [job.target.retention] in them: this job destroys only sanoid's snapshots (%s)", sanoidNames)
	}
	if p.recursive && p.enabled("process_children_only") {
		p.draft.Exclude = append(p.draft.Exclude, ".")
	}
}

func (p *policy) enabled(key string) bool {
	if v, ok := p.values[key]; ok {
		return parseBool(v.value)
	}
	return sanoidDefaults()[key] != 0
}

// section is a section of sanoid.conf: a dataset or a template.
type section struct {
	name  string
	where string    // FILE:LINE
	keys  []setting // in the order of the file
}

// setting is one key of a section.
type setting struct {
	key, value string
	where      string // FILE:LINE
}

// get returns the last value of a key.
func (s *section) get(key string) (setting, bool) {
	for _, k := range slices.Backward(s.keys) {
		if k.key == key {
			return k, true
		}
	}
	return setting{}, false
}

// parseINI parses the format of Config::IniFiles, which sanoid uses: "[section]", "key = value",
// and comments on lines that start with "#" or ";". A repeated section is continued. Multi-line
// values ("<<") are not supported, because no setting of sanoid needs them.
func parseINI(file, text string) ([]*section, error) {
	var out []*section
	var current *section
	byName := map[string]*section{}
	n := 0
	for raw := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		n++
		l, where := strings.TrimSpace(raw), fmt.Sprintf("%s:%d", file, n)
		if l == "" || l[0] == '#' || l[0] == ';' {
			continue
		}
		if name, ok := strings.CutPrefix(l, "["); ok {
			name, closed := strings.CutSuffix(name, "]")
			if name = strings.TrimSpace(name); !closed || name == "" {
				return nil, fault.Usagef("write [POOL/DATASET] or [template_NAME]", "%s: %q is not a section", where, l)
			}
			if current = byName[name]; current == nil {
				current = &section{name: name, where: where}
				byName[name], out = current, append(out, current)
			}
			continue
		}
		key, value, ok := strings.Cut(l, "=")
		if key = strings.TrimSpace(key); !ok || key == "" {
			return nil, fault.Usagef("write KEY = VALUE", "%s: %q is neither a section nor a setting", where, l)
		}
		if current == nil {
			return nil, fault.Usagef("write [POOL/DATASET] above it", "%s: the setting %q belongs to no section", where, key)
		}
		current.keys = append(current.keys, setting{key, strings.TrimSpace(value), where})
	}
	return out, nil
}

// policyOf returns the policy that applies to a dataset: its own, or the policy of the closest recursive
// section above.
func policyOf(policies []*policy, name string) (found *policy) {
	for _, p := range policies {
		if p.path == name {
			return p
		}
		if p.recursive && isWithin(p.path, name) && (found == nil || len(p.path) > len(found.path)) {
			found = p
		}
	}
	return found
}
