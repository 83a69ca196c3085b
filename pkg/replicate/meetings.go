package replicate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
)

// destination is where a job's target puts the copy of its source, or that source: holds
// and bookmarks there have the names of the job and its targets.
type destination struct {
	on, dataset string
	below       bool // with datasets below
	by          *member
	job         string
	// source is the name of the job whose source this is, "" = it is no source. Only jobs
	// of one name meet there.
	source string
}

// room has the landings that may meet.
func (l *destination) room() string { return l.source + "\x00" + l.on }

func (l *destination) key() string {
	return l.room() + "\x00" + strings.ReplaceAll(l.dataset, "/", "\x01")
}

// conflicts refuses two hosts that would write to one dataset, or one below what the
// other keeps in order; and two that by jobs of one name have one source. Hosts are told
// apart by how they are written.
func (inv *Inventory) conflicts() error {
	var all []*destination
	for _, h := range inv.members() {
		for _, job := range inv.jobs {
			if inv.takes(h, job) {
				all = append(all, destinations(job, h)...)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *destination) int { return strings.Compare(a.key(), b.key()) })
	var errs []error
	told := map[[3]string]bool{}
	var above []*destination // each is that of the next, or has it below
	for _, l := range all {
		for len(above) > 0 {
			if up := above[len(above)-1]; up.room() == l.room() && (up.dataset == l.dataset || strings.HasPrefix(l.dataset, up.dataset+"/")) {
				break
			}
			above = above[:len(above)-1]
		}
		met := slices.IndexFunc(above, func(up *destination) bool { return up.by != l.by && (up.dataset == l.dataset || up.below) })
		if met < 0 {
			above = append(above, l)
			continue
		}
		if jobs := [3]string{above[met].job, l.job, l.source}; !told[jobs] {
			told[jobs] = true
			errs = append(errs, inv.conflict(above[met], l))
		}
	}
	return errors.Join(errs...)
}

func (inv *Inventory) conflict(up, l *destination) error {
	where := l.dataset
	if up.dataset != l.dataset {
		where = fmt.Sprintf("%s, with what is below, and %s", up.dataset, l.dataset)
	}
	p, who := places{name: inv.name}, fmt.Sprintf("hosts %s and %s", up.by, l.by)
	if up.by.anyOf != "" && up.by.anyOf == l.by.anyOf {
		who = fmt.Sprintf("any two hosts of group %q", l.by.anyOf)
	}
	jobs := fmt.Sprintf("jobs %q and %q", up.job, l.job)
	if up.job == l.job {
		jobs = fmt.Sprintf("job %q", l.job)
	}
	if l.source != "" {
		return fault.Usagef("put {host} into the job's name: name = \"NAME-{host}\"; hosts that take turns have one name: --host NAME",
			"%s%s: %s would both send from %s on %s, and release each other's holds there", p.file(), jobs, who, where, l.on)
	}
	return fault.Usagef("put {host} into the target's to; hosts that take turns with one pool have one name: --host NAME",
		"%s%s: %s would both write to %s on %s", p.file(), jobs, who, where, l.on)
}

// destinations are where a host's job writes to, and its source; none where the job says it
// wrongly, as validating the host's part tells.
func destinations(job map[string]any, h *member) (out []*destination) {
	from, err := endpoint.Parse(h.text(job["source"]))
	if err != nil {
		return nil
	}
	below, _ := job["recursive"].(bool)
	name, _ := job["name"].(string)
	add := func(at endpoint.Endpoint, dataset, source string) {
		l := &destination{on: strings.ToLower(at.HostName()), dataset: dataset, below: below, by: h, job: name, source: source}
		if at.Local() {
			l.on = h.name
		}
		if l.dataset != "" {
			out = append(out, l)
		}
	}
	add(from, from.Name, h.text(name))
	targets, _ := job["target"].([]any)
	for _, v := range targets {
		table, _ := v.(map[string]any)
		t := &Target{To: h.text(table["to"])}
		if to, err := endpoint.Parse(t.To); err == nil {
			add(to, t.CopyOf(from.Name, from.Name), "")
		}
	}
	return out
}
