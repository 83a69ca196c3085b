package importer

import (
	"slices"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/remedy"
	"zxfer/pkg/replicate"
)

// targets adds entries about the copies that exist already, with one command for each host, and about
// targets that keep all snapshots.
func (s *state) targets() {
	copies := map[remedy.Host][]string{}
	first := map[remedy.Host]string{}
	var order []remedy.Host
	var unlimited []*draft
	for _, d := range s.drafts {
		for i := range d.Targets {
			t := &d.Targets[i]
			to, err := endpoint.Parse(t.To)
			from, fromErr := endpoint.Parse(d.Source)
			if err != nil || fromErr != nil {
				continue // Validate reports it
			}
			if t.Retention == nil && !t.MirrorsSnapshots() {
				unlimited = append(unlimited, d)
			}
			name := t.CopyOf(from.Name, from.Name)
			if d.noTarget || name == "" || strings.Contains(from.Name+to.Name, placeholder) {
				continue
			}
			at := remedy.Host{Name: to.Host, Shell: d.Transfer.RSH}
			if !slices.Contains(order, at) {
				order = append(order, at)
				first[at] = d.where
			}
			if !slices.Contains(copies[at], name) {
				copies[at] = append(copies[at], name)
			}
		}
	}
	for _, at := range order {
		argv := append([]string{"zfs", "set", "readonly=on", "canmount=noauto"}, copies[at]...)
		s.addEntry(nil, first[at], "existing copies", "make them read-only, because zxfer refuses a modified copy: for the roots as here (volumes without canmount), "+
			"for all datasets with the command of zxfer replicate check: %s", at.Command(argv...))
	}
	if len(unlimited) == 0 {
		return
	}
	var jobs []string
	for _, d := range unlimited {
		jobs = append(jobs, d.Name)
	}
	s.addEntry(nil, unlimited[0].where, "retention of the target", "write [job.target.retention] in %s, or zxfer keeps all snapshots there; "+
		"to convert the sanoid.conf of the target, which prunes only autosnap_*: --target-conf FILE", strings.Join(slices.Compact(jobs), ", "))
}

// retentionComment returns a retention of the target as comments of the job file, or "" if each target
// has one.
func (d *draft) retentionComment() string {
	i := slices.IndexFunc(d.Targets, func(t replicate.Target) bool { return t.Retention == nil && !t.MirrorsSnapshots() })
	if i < 0 {
		return ""
	}
	return "\n# Without this table, zxfer keeps all snapshots on the target.\n#[job.target.retention]\n#hourly = 48\n#daily = 90\n#monthly = 12\n"
}

// targetPolicies gives jobs the retention that sanoid.conf of the backup host has for their copies. It
// leaves to the user a copy of which sanoid treats descendants differently, and jobs whose scope has
// other snapshots than sanoid's.
func (s *state) targetPolicies(file, text string) error {
	sections, err := parseINI(file, text)
	if err != nil {
		return err
	}
	policies, err := sanoidPolicies(sections)
	if err != nil {
		return err
	}
	for _, d := range s.drafts {
		from, err := endpoint.Parse(d.Source)
		if err != nil || d.noSource || d.noTarget || len(d.Targets) != 1 || d.Targets[0].Retention != nil {
			continue
		}
		t := &d.Targets[0]
		name := t.CopyOf(from.Name, from.Name)
		p := policyOf(policies, name)
		why := ""
		switch {
		case p == nil:
			why = "it has no section for " + name
		case !slices.Equal(d.Snapshots.Adopt, []string{sanoidNames}):
			why = "the job adopts other snapshots than sanoid's (snapshots.adopt)"
		case d.Recursive && (!p.recursive || slices.ContainsFunc(policies, func(o *policy) bool { return o != p && o.path != name && isWithin(name, o.path) })):
			why = "it treats descendants of " + name + " differently"
		case p.grid() == nil:
			why = "it does not prune " + name
		default:
			t.Retention = p.grid()
			continue
		}
		s.addEntry(d, d.where, file, "write [job.target.retention]: %s", why)
	}
	return nil
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
