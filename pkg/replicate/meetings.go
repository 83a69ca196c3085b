package replicate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
)

// destination is a dataset that a host's job uses: a copy, or the source. Holds and bookmarks on
// it have the names of the job and its targets.
type destination struct {
	on, dataset string
	below       bool // includes descendants
	by          *member
	job         string
	// source is the name of the job if the dataset is its source, else "". Sources conflict only
	// if their jobs have the same name.
	source string
}

// room returns a key that is equal for destinations that may conflict.
func (l *destination) room() string { return l.source + "\x00" + l.on }

func (l *destination) key() string {
	return l.room() + "\x00" + strings.ReplaceAll(l.dataset, "/", "\x01")
}

// conflicts reports two hosts that write to the same dataset, or one that writes below a recursive
// copy of the other. It also reports two hosts whose jobs have the same name and source. It
// compares host names as written, without resolving them.
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
	var above []*destination // stack: each contains or equals the next
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

// destinations returns the source and the copies of a host's job. It skips invalid names, which
// Validate reports.
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
