package importer

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kballard/go-shellquote"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
)

// policy is what sanoid does with the dataset of a section.
type policy struct {
	*section
	path      string
	values    map[string]setting // effective ones, where they come from a file
	recursive bool
	zfs       bool // recursive = zfs: datasets below cannot differ
	children  bool // process_children_only
	alone     bool // skip_children
	outer     *policy
	draft     *draft   // nil where the policy makes no job
	covered   bool     // the job of the section above does what it says
	removes   bool     // its draft only removes
	at        []string // targets whose retention does what the draft would
}

// sanoidDefaults are what sanoid assumes without a setting.
//
// https://github.com/jimsalterjrs/sanoid/blob/v2.1.0/sanoid.defaults.conf
func sanoidDefaults() map[string]int {
	return map[string]int{"frequently": 0, "hourly": 48, "daily": 90, "weekly": 0, "monthly": 6, "yearly": 0,
		"frequent_period": 15, "hourly_min": 0, "daily_hour": 23, "daily_min": 59,
		"weekly_wday": 1, "weekly_hour": 23, "weekly_min": 30,
		"monthly_mday": 1, "monthly_hour": 0, "monthly_min": 0,
		"yearly_mon": 1, "yearly_mday": 1, "yearly_hour": 0, "yearly_min": 0,
		"autosnap": 1, "autoprune": 1, "script_timeout": 5}
}

// truth reads a switch as sanoid does.
func truth(s string) bool {
	return !slices.Contains([]string{"", "0", "false", "no", "off"}, strings.ToLower(s))
}

func (p *policy) on(key string) bool {
	if v, ok := p.values[key]; ok {
		return truth(v.value)
	}
	return sanoidDefaults()[key] != 0
}

func (p *policy) number(key string) (int, error) {
	v, ok := p.values[key]
	if !ok || v.value == "" {
		return sanoidDefaults()[key], nil
	}
	n, err := strconv.Atoi(v.value)
	if err != nil || n < 0 || n > 100_000 {
		return 0, fault.Usagef("", "%s: %s = %q: a number from 0 to 100000 is wanted", v.where, key, v.value)
	}
	return n, nil
}

// policies works out what every section comes to, as sanoid's init does: the
// defaults, or what a recursive section above has set, then the templates,
// then its own settings. It makes a draft of each that takes or removes
// snapshots.
func (s *state) policies(sections []*section) ([]*policy, error) {
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
	for i, p := range all {
		for _, later := range all[i+1:] {
			if later.recursive && within(later.path, p.path) {
				s.note(nil, p.where(), "["+p.name+"]", Dropped, "[%s] comes later, is recursive and overrides it, in sanoid as here", later.name)
				p.outer, p.values = later, later.values
			}
		}
		if err := s.policyJob(p); err != nil {
			return nil, err
		}
	}
	for _, p := range all {
		s.leaveOut(p)
	}
	s.sanoidNotes(all, templates)
	return all, nil
}

func newPolicy(sec *section, templates map[string]*section, before []*policy) (*policy, error) {
	p := &policy{section: sec, values: map[string]setting{}}
	name, where := sec.name, sec.where()
	if v, ok := sec.get("path"); ok && v.value != "" {
		name, where = v.value, v.where
	}
	var err error
	if p.path, err = dataset(where, name); err != nil {
		return nil, err
	}
	for _, earlier := range slices.Backward(before) {
		if earlier.recursive && earlier.path != p.path && within(earlier.path, p.path) {
			p.outer = earlier
			break
		}
	}
	local := []string{"path", "use_template", "recursive", "skip_children"}
	take := func(from *section, except ...string) {
		for _, k := range from.keys {
			if !slices.Contains(except, k.key) {
				p.values[k.key] = k
			}
		}
	}
	if p.outer != nil {
		p.values = maps.Clone(p.outer.values)
		delete(p.values, "process_children_only")
	} else if t := templates["default"]; t != nil {
		take(t, local...)
	}
	if v, ok := sec.get("use_template"); ok {
		for t := range strings.SplitSeq(v.value, ",") {
			if t = strings.TrimSpace(t); t == "" {
				continue
			}
			if templates[t] == nil {
				return nil, fault.Usagef("", "%s: there is no [template_%s]", v.where, t)
			}
			take(templates[t], local...)
		}
	}
	take(sec, local...)
	if v, ok := sec.get("recursive"); ok {
		p.zfs = strings.EqualFold(v.value, "zfs")
		p.recursive = truth(v.value)
	}
	if v, ok := sec.get("skip_children"); ok {
		p.alone = truth(v.value)
	}
	p.children = p.on("process_children_only")
	return p, nil
}

// takes tells whether sanoid takes any snapshot of the policy's dataset.
func (p *policy) takes() (bool, error) {
	any := false
	for _, period := range sanoidPeriods() {
		n, err := p.number(period)
		if err != nil {
			return false, err
		}
		any = any || n > 0
	}
	return any && p.on("autosnap"), nil
}

// watched tells whether sanoid's monitoring looks at the policy.
func (p *policy) watched() bool {
	v, set := p.values["monitor"]
	return !set || truth(v.value)
}

func sanoidPeriods() []string {
	return []string{"frequently", "hourly", "daily", "weekly", "monthly", "yearly"}
}

// schedule is the calendar event of the most frequent snapshots.
func (p *policy) schedule() (string, error) {
	var errs []error
	number := func(key string) int {
		n, err := p.number(key)
		errs = append(errs, err)
		return n
	}
	two := func(n int) string {
		if n < 10 {
			return "0" + strconv.Itoa(n)
		}
		return strconv.Itoa(n)
	}
	clock := func(period string) string { return two(number(period+"_hour")) + ":" + two(number(period+"_min")) }
	spec := ""
	switch {
	case number("frequently") > 0:
		spec = "*:0/" + strconv.Itoa(max(1, number("frequent_period")))
	case number("hourly") > 0:
		if spec = "hourly"; number("hourly_min") > 0 {
			spec = "*:" + two(number("hourly_min"))
		}
	case number("daily") > 0:
		spec = clock("daily")
	case number("weekly") > 0:
		days := []string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"}
		spec = days[number("weekly_wday")%len(days)] + " " + clock("weekly")
	case number("monthly") > 0:
		spec = "*-*-" + two(number("monthly_mday")) + " " + clock("monthly")
	default:
		spec = "*-" + two(number("yearly_mon")) + "-" + two(number("yearly_mday")) + " " + clock("yearly")
	}
	for _, err := range errs {
		if err != nil {
			return "", err
		}
	}
	return spec, nil
}

// same tells whether a policy below a recursive one does what that does.
func (p *policy) same(o *policy) bool {
	for _, key := range append(sanoidPeriods(), "frequent_period", "hourly_min", "daily_hour", "daily_min", "weekly_wday", "weekly_hour",
		"weekly_min", "monthly_mday", "monthly_hour", "monthly_min", "yearly_mon", "yearly_mday", "yearly_hour", "yearly_min") {
		a, errA := p.number(key)
		b, errB := o.number(key)
		if a != b || errA != nil || errB != nil {
			return false
		}
	}
	for _, key := range []string{"pre_snapshot_script", "post_snapshot_script"} {
		if p.values[key].value != o.values[key].value {
			return false
		}
	}
	return p.on("autosnap") == o.on("autosnap") && p.on("autoprune") == o.on("autoprune") && !p.children && !p.alone
}

// policyJob makes the draft of a policy.
func (s *state) policyJob(p *policy) error {
	if p.outer != nil {
		if p.outer.zfs {
			s.note(nil, p.where(), "["+p.name+"]", Dropped, "[%s] is recursive = zfs: the datasets below it cannot differ", p.outer.name)
			return nil
		}
		if p.covered = p.same(p.outer); p.covered {
			return nil
		}
	}
	takes, err := p.takes()
	if err != nil {
		return err
	}
	grid, err := p.grid()
	if err != nil || !takes && grid == nil {
		return err
	}
	spec, err := p.schedule()
	if err != nil {
		return err
	}
	d := s.add(&draft{where: p.where(), wish: jobWord(p.path), Job: replicate.Job{
		Source: p.path, Recursive: p.recursive && !p.alone, Schedule: spec, Retention: grid,
		Snapshots: replicate.Snapshots{Take: replicate.DefaultTemplate, Adopt: []string{adoptedFrom}},
	}})
	p.draft = d
	if takes && p.watched() {
		var at setting
		if d.Grace, at = p.grace(); d.Grace > 0 {
			s.carried = append(s.carried, at.where)
		}
	}
	if !takes {
		p.removes, d.alone, d.Snapshots.Take = true, true, ""
	}
	if p.outer != nil && !p.alone && !d.Recursive {
		d.Recursive = true
		s.note(d, p.where(), "["+p.name+"]", Changed, "datasets below it go by this section, too, and not by [%s]: a job leaves out a dataset only with all below", p.outer.name)
	}
	if p.children {
		if d.Recursive {
			d.Exclude = append(d.Exclude, ".")
		} else {
			s.note(d, p.values["process_children_only"].where, "process_children_only", Dropped, "it means nothing without recursive")
		}
	}
	if n, err := p.number("frequently"); err == nil && n > 0 && grid != nil {
		s.note(d, p.where(), "frequently", Changed, "kept as last = %d: the newest snapshots of all, of whatever hour", grid.Last)
	}
	if p.removes {
		return nil // no script runs around snapshots that are never taken
	}
	return s.scripts(p, d)
}

// scripts makes comments of the scripts around snapshots.
func (s *state) scripts(p *policy, d *draft) error {
	for _, sc := range []struct{ key, table string }{{"pre_snapshot_script", "before"}, {"post_snapshot_script", "after"}} {
		v := p.values[sc.key]
		if v.value == "" {
			continue
		}
		words, err := shellquote.Split(v.value)
		if err != nil {
			return fault.Usagef("", "%s: %s: %w", v.where, sc.key, err)
		}
		h := hook{table: sc.table, Hook: replicate.Hook{Command: words}}
		if t := p.values["script_timeout"]; t.value == "" {
			h.Timeout = replicate.Duration(time.Duration(sanoidDefaults()["script_timeout"]) * time.Second)
		} else if n, err := strconv.Atoi(t.value); err == nil && n > 0 && n < 1<<20 {
			h.Timeout = replicate.Duration(time.Duration(n) * time.Second)
		}
		if sc.table == "before" && !p.on("no_inconsistent_snapshot") {
			h.OnFailure = "continue"
		}
		d.hooks = append(d.hooks, h)
		what := "once before the run's snapshots of all datasets"
		if sc.table == "after" {
			what = "at the end of the run, when all is sent: not at once after the snapshots"
		}
		if len(words) == 0 || !path.IsAbs(words[0]) {
			what += "; it wants an absolute path"
		}
		s.note(d, v.where, sc.key+" = "+v.value, ByHand, "in the job as a comment: here it runs %s, without SANOID_ variables; uncomment it if that serves", what)
	}
	return nil
}
