package replicate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
)

// conflicts reports two hosts that write to the same dataset, or one that writes below a recursive
// copy of the other. It also reports two hosts whose jobs have the same name and source. It
// compares host names as written, without resolving them.
func (inv *Inventory) conflicts() error {
	var all []*destination
	for _, h := range inv.members() {
		for _, job := range inv.jobs {
			if inv.hasJob(h, job) {
				all = append(all, destinations(job, h)...)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *destination) int { return strings.Compare(a.key(), b.key()) })
	var errs []error
	reported := map[[3]string]bool{}
	var stack []*destination // each contains or equals the next
	for _, l := range all {
		for len(stack) > 0 {
			if up := stack[len(stack)-1]; up.group() == l.group() && (up.dataset == l.dataset || strings.HasPrefix(l.dataset, up.dataset+"/")) {
				break
			}
			stack = stack[:len(stack)-1]
		}
		other := slices.IndexFunc(stack, func(up *destination) bool { return up.host != l.host && (up.dataset == l.dataset || up.recursive) })
		if other < 0 {
			stack = append(stack, l)
			continue
		}
		if jobs := [3]string{stack[other].job, l.job, l.source}; !reported[jobs] {
			reported[jobs] = true
			errs = append(errs, inv.conflict(stack[other], l))
		}
	}
	return errors.Join(errs...)
}

// destination is a dataset that a host's job uses: a copy, or the source. Holds and bookmarks on
// it have the names of the job and its targets.
type destination struct {
	server, dataset string
	recursive       bool // includes descendants
	host            *member
	job             string
	// source is the name of the job if the dataset is its source, else "". Sources conflict only
	// if their jobs have the same name.
	source string
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
		l := &destination{server: strings.ToLower(at.HostName()), dataset: dataset, recursive: below, host: h, job: name, source: source}
		if at.Local() {
			l.server = h.name
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

func (l *destination) key() string {
	return l.group() + "\x00" + strings.ReplaceAll(l.dataset, "/", "\x01")
}

// group returns a key that is equal for destinations that may conflict.
func (l *destination) group() string { return l.source + "\x00" + l.server }

func (inv *Inventory) conflict(up, l *destination) error {
	dataset := l.dataset
	if up.dataset != l.dataset {
		dataset = fmt.Sprintf("%s, with what is below, and %s", up.dataset, l.dataset)
	}
	p, hosts := locations{name: inv.name}, fmt.Sprintf("hosts %s and %s", up.host, l.host)
	if up.host.anyOf != "" && up.host.anyOf == l.host.anyOf {
		hosts = fmt.Sprintf("any two hosts of group %q", l.host.anyOf)
	}
	jobs := fmt.Sprintf("jobs %q and %q", up.job, l.job)
	if up.job == l.job {
		jobs = fmt.Sprintf("job %q", l.job)
	}
	if l.source != "" {
		return fault.Usagef("put {host} into the job's name: name = \"NAME-{host}\"; hosts that take turns have one name: --host NAME",
			"%s%s: %s would both send from %s on %s, and release each other's holds there", p.file(), jobs, hosts, dataset, l.server)
	}
	return fault.Usagef("put {host} into the target's to; hosts that take turns with one pool have one name: --host NAME",
		"%s%s: %s would both write to %s on %s", p.file(), jobs, hosts, dataset, l.server)
}
