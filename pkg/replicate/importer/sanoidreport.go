package importer

import (
	"maps"
	"slices"
	"strings"
)

// leaveOut excludes a policy's dataset from the recursive job above it.
func (s *state) leaveOut(p *policy) {
	if p.covered || p.draft == nil && p.outer != nil && p.outer.zfs {
		return
	}
	// The job above is of the nearest section that has one.
	for outer := p.outer; outer != nil; outer = outer.outer {
		if outer.draft == nil {
			continue
		}
		outer.draft.Exclude = append(outer.draft.Exclude, literal(below(outer.path, p.path)))
		if p.draft == nil {
			s.note(outer.draft, p.where(), "["+p.name+"]", Changed, "left out, with all below it: the section takes and removes no snapshots")
		}
		return
	}
	if p.draft == nil {
		s.note(nil, p.where(), "["+p.name+"]", Dropped, "it takes and removes no snapshots: there is nothing for a job to do")
	}
}

// removeAlone reports the jobs that only remove, and takes out of them what the
// retention of a target removes.
func (s *state) removeAlone(policies []*policy) {
	for _, p := range policies {
		if !p.removes {
			continue
		}
		if slices.Contains(p.at, p.path) {
			s.drafts = slices.DeleteFunc(s.drafts, func(d *draft) bool { return d == p.draft })
			continue
		}
		if p.draft.Recursive {
			for _, to := range p.at {
				p.draft.Exclude = append(p.draft.Exclude, literal(below(p.path, to)))
			}
		}
		s.note(p.draft, p.where(), "["+p.name+"]", Changed, "a job without a target removes the autosnap_*ly that others send here; of a dataset that zxfer sends here, [job.target.retention] of that job removes them")
	}
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
	if j := slices.IndexFunc(all, func(p *policy) bool { return p.draft != nil && !p.removes }); j >= 0 {
		s.note(nil, all[j].where(), "snapshots", Changed, "a run takes one snapshot of a dataset, and the newest of each hour, day, week, month and year is kept; "+
			"sanoid takes one of each kind and removes it by age. Its own snapshots ("+adoptedFrom+") are adopted: sent where there is a target, and removed when neither the grid nor sanoid's rule for their kind (also) keeps them. "+
			"The grid has one to three periods more than sanoid's numbers, so that it reaches as far back at any date")
	}
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
		case slices.Contains(s.carried, k.where):
			// It is the job's grace.
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
		case k.key == "prune_defer" && p.deferred() && p.on("autoprune"):
			s.note(p.draft, k.where, k.key, ByHand, "retention is left out, so all stays: it does not look at how full the pool is, and would remove what sanoid keeps until then; write [job.retention]")
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
