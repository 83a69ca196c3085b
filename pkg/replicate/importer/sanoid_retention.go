package importer

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/retention"
)

// sanoidNames matches the names of sanoid's own snapshots. sanoid ignores others.
const sanoidNames = "autosnap_*ly"

// schedule returns the calendar event of the most frequent snapshots.
func (p *policy) schedule() string {
	kind := p.finest()
	clock := fmt.Sprintf("%02d:%02d", p.number(kind+"_hour"), p.number(kind+"_min"))
	switch kind {
	case "frequently":
		return "*:0/" + strconv.Itoa(max(1, p.number("frequent_period")))
	case "hourly":
		if p.number("hourly_min") == 0 {
			return "hourly"
		}
		return fmt.Sprintf("*:%02d", p.number("hourly_min"))
	case "daily":
		return clock
	case "weekly":
		return []string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"}[p.number("weekly_wday")%7] + " " + clock
	case "monthly":
		return fmt.Sprintf("*-*-%02d %s", p.number("monthly_mday"), clock)
	}
	return fmt.Sprintf("*-%02d-%02d %s", p.number("yearly_mon"), p.number("yearly_mday"), clock)
}

// finest returns the most frequent kind in the policy, or "".
func (p *policy) finest() string {
	for _, kind := range sanoidPeriods() {
		if p.number(kind) > 0 {
			return kind
		}
	}
	return ""
}

// sanoidPeriods returns sanoid's kinds of snapshots, the most frequent first.
func sanoidPeriods() []string {
	return []string{"frequently", "hourly", "daily", "weekly", "monthly", "yearly"}
}

// grid returns the policy's retention, or nil if it never or only conditionally prunes. It keeps
// sanoid's own snapshots by sanoid's rule, and others by a grid that covers the same time. sanoid
// prunes a snapshot if it is older than n periods of its kind and more than n of that kind exist.
// Its months have 31 days.
//
// https://github.com/jimsalterjrs/sanoid/blob/v2.1.0/sanoid (prune_snapshots)
func (p *policy) grid() *retention.Grid {
	if !p.enabled("autoprune") || p.enabled("prune_defer") {
		return nil
	}
	periods := map[string]time.Duration{"frequently": time.Duration(p.number("frequent_period")) * time.Minute, "hourly": time.Hour,
		"daily": day, "weekly": 7 * day, "monthly": 31 * day, "yearly": 365*day + day/4}
	g := &retention.Grid{}
	for _, kind := range sanoidPeriods() {
		n, period := p.number(kind), max(periods[kind], time.Minute)
		if n == 0 {
			continue
		}
		span := multiply(n, period)
		if r, ok := ruleOf(period); ok && kind != "frequently" {
			r.reach(g, span)
		} else {
			raise(&g.Last, n+1)
		}
		g.Also = append(g.Also, retention.Also{Names: []string{"autosnap_*_" + kind}, Last: n, Age: calendar.Duration(span)})
	}
	if g.Empty() {
		return nil
	}
	return g
}

// sanoidUnconverted adds entries for the settings that are not converted, one per line.
func (s *state) sanoidUnconverted(policies []*policy) {
	seen := map[string]bool{}
	for _, p := range policies {
		for _, from := range p.from {
			for _, k := range from.keys {
				if do := p.advice(k); do != "" && !seen[k.where] {
					seen[k.where] = true
					s.addEntry(p.draft, k.where, k.key+" = "+k.value, "%s", do)
				}
			}
		}
	}
}

// advice returns what to do about a setting, or "" if it is converted.
func (p *policy) advice(k setting) string {
	kind, _, timed := strings.Cut(k.key, "_")
	_, known := sanoidDefaults()[k.key]
	switch {
	case strings.HasPrefix(k.key, "monitor"), strings.HasSuffix(k.key, "_warn"), strings.HasSuffix(k.key, "_crit"):
		return "to monitor late jobs, use zxfer replicate status (exit code 1) or [metrics], with grace = SPAN as the threshold; zxfer does not monitor the capacity of pools"
	case known && timed && kind != "frequent" && kind != p.finest():
		return "nothing: each run takes one snapshot, and retention keeps the most recent one of each period"
	case known:
		return ""
	}
	switch k.key {
	case "path", "use_template", "recursive", "process_children_only", "skip_children":
		return ""
	case "pre_snapshot_script":
		return "write [[job.freeze]], kind = \"command\", with the command as a list in freeze; it runs just before the snapshots, without SANOID_ variables"
	case "post_snapshot_script":
		return "write it into thaw of [[job.freeze]]; it runs just after the snapshots, without SANOID_ variables"
	case "script_timeout":
		return fmt.Sprintf("write timeout = %q into [[job.freeze]]", k.value+"s")
	case "no_inconsistent_snapshot", "force_post_snapshot_script":
		return "see timeout and on_failure of [[job.freeze]], whose thaw always runs"
	case "pre_pruning_script", "pruning_script":
		return "use [[job.after]], which gets the record of the run, with the number of destroyed snapshots, on standard input"
	case "prune_defer", "min_percent_free":
		if !parseBool(k.value) {
			return ""
		}
		return "write [job.retention]: zxfer does not consider the fill level of the pool, so prune_defer was imported without retention"
	}
	return "convert it manually: the importer supports only sanoid 2.2"
}
