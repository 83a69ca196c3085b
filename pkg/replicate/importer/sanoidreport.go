package importer

import (
	"maps"
	"slices"
	"strings"
)

// leaveOut excludes a policy's dataset from the recursive job above it.
func (s *state) leaveOut(p *policy) {
	takes, err := p.takes()
	if err != nil {
		return // reported already
	}
	if p.draft == nil && (p.outer == nil || takes || p.outer.zfs) {
		if !takes && p.outer == nil {
			s.idle(p)
		}
		return
	}
	// The job above is of the nearest section that has one.
	for outer := p.outer; outer != nil; outer = outer.outer {
		if outer.draft == nil {
			continue
		}
		outer.draft.Exclude = append(outer.draft.Exclude, literal(below(outer.path, p.path)))
		if p.draft == nil {
			s.note(outer.draft, p.where(), "["+p.name+"]", Changed, "left out, with all below it: the section takes no snapshots")
		}
		return
	}
	if p.draft == nil {
		s.idle(p)
	}
}

// idle reports a policy that takes no snapshots.
func (s *state) idle(p *policy) {
	grid, err := p.grid()
	if err != nil || grid == nil {
		s.note(nil, p.where(), "["+p.name+"]", Dropped, "it takes and removes no snapshots: there is nothing for a job to do")
		return
	}
	s.entries = append(s.entries, p.retained(fieldsLine(grid)))
}

// retained is the entry of a policy that only removes snapshots.
func (p *policy) retained(grid string) *Entry {
	p.idle = &Entry{Where: p.where(), What: "[" + p.name + "]", Class: Dropped,
		Why: "it only removes what another host sends here: that host's job removes it, by [job.target.retention] with " + grid}
	return p.idle
}

// fieldsLine is a table in one line.
func fieldsLine(v any) string {
	return strings.ReplaceAll(strings.TrimSpace(fields(v)), "\n", ", ")
}

// sanoidNotes reports what concerns all jobs, and the settings that have no
// counterpart, each line once.
func (s *state) sanoidNotes(all []*policy, templates map[string]*section) {
	i := slices.IndexFunc(all, func(p *policy) bool { return p.draft != nil })
	if i < 0 && len(all) > 0 {
		return
	}
	if len(all) == 0 {
		for _, name := range slices.Sorted(maps.Keys(templates)) {
			s.note(nil, templates[name].where(), "[template_"+name+"]", Dropped, "no dataset uses it")
		}
		return
	}
	s.note(nil, all[i].where(), "snapshots", Changed, "a run takes one snapshot of a dataset, and the newest of each hour, day, week, month and year is kept; "+
		"sanoid takes one of each kind and removes it by age. Its own snapshots (autosnap_*) are adopted: sent, and removed by the same grid")
	s.note(nil, all[i].where(), "sanoid.timer", ByHand, "end sanoid's timer or cron line for these datasets before the first run")
	seen := map[string]bool{}
	for _, p := range all {
		for _, from := range append(p.used(templates), p.section) {
			if !seen[from.where()] {
				seen[from.where()] = true
				s.unmatched(p, from)
			}
		}
	}
}

// used are the templates of a policy's section.
func (p *policy) used(templates map[string]*section) []*section {
	var out []*section
	if t := templates["default"]; t != nil {
		out = append(out, t)
	}
	v, _ := p.get("use_template")
	for t := range strings.SplitSeq(v.value, ",") {
		if sec := templates[strings.TrimSpace(t)]; sec != nil {
			out = append(out, sec)
		}
	}
	return out
}

// unmatched reports the settings of a section that have no counterpart; what
// watches over snapshots in one entry.
func (s *state) unmatched(p *policy, from *section) {
	var watching []string
	watched := ""
	for _, k := range from.keys {
		name, _ := strings.CutSuffix(strings.TrimSuffix(k.key, "_warn"), "_crit")
		watch := k.key == "monitor" || strings.HasPrefix(k.key, "monitor_dont_") || name != k.key &&
			(slices.Contains(sanoidPeriods(), name) || name == "capacity")
		_, known := sanoidDefaults()[k.key]
		switch {
		case watch:
			if watched == "" {
				watched = k.where
			}
			watching = append(watching, k.key)
		case known, slices.Contains([]string{"path", "use_template", "recursive", "process_children_only", "skip_children",
			"pre_snapshot_script", "post_snapshot_script"}, k.key):
			s.timing(k)
		case k.key == "no_inconsistent_snapshot":
			// It is the on_failure of the script before.
		case k.key == "pruning_script", k.key == "pre_pruning_script":
			s.note(p.draft, k.where, k.key, Dropped, "no command runs for a removed snapshot; the run's record counts them")
		case k.key == "force_post_snapshot_script":
			s.note(p.draft, k.where, k.key, Dropped, "hooks after a run always run, also where one before it failed")
		case k.key == "prune_defer", k.key == "min_percent_free":
			if truth(k.value) {
				s.note(p.draft, k.where, k.key, Dropped, "retention does not look at how full the pool is")
			}
		default:
			s.note(p.draft, k.where, k.key, Dropped, "it is not known to this importer, which knows sanoid 2.2")
		}
	}
	if len(watching) > 0 {
		s.note(nil, watched, strings.Join(watching, ", "), Dropped, "zxfer replicate status (exit code 1 when a dataset is late against the schedule) and [metrics] watch over snapshots; a pool's capacity neither watches")
	}
}

// timing reports a time of day of a kind of snapshot other than the most
// frequent one.
func (s *state) timing(k setting) {
	for _, period := range []string{"daily", "weekly", "monthly", "yearly"} {
		if strings.HasPrefix(k.key, period+"_") {
			s.note(nil, k.where, k.key, Changed, "it counts only where no more frequent snapshots are taken: the %s one is the newest of its period", period)
		}
	}
}
