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
	for _, d := range all {
		for len(stack) > 0 {
			if upper := stack[len(stack)-1]; upper.group() == d.group() && (upper.dataset == d.dataset || strings.HasPrefix(d.dataset, upper.dataset+"/")) {
				break
			}
			stack = stack[:len(stack)-1]
		}
		other := slices.IndexFunc(stack, func(upper *destination) bool {
			return upper.host != d.host && (upper.dataset == d.dataset || upper.recursive)
		})
		if other < 0 {
			stack = append(stack, d)
			continue
		}
		if jobs := [3]string{stack[other].job, d.job, d.source}; !reported[jobs] {
			reported[jobs] = true
			errs = append(errs, inv.conflict(stack[other], d))
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
		d := &destination{server: strings.ToLower(at.HostName()), dataset: dataset, recursive: below, host: h, job: name, source: source}
		if at.Local() {
			d.server = h.name
		}
		if d.dataset != "" {
			out = append(out, d)
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

func (d *destination) key() string {
	return d.group() + "\x00" + strings.ReplaceAll(d.dataset, "/", "\x01")
}

// group returns a key that is equal for destinations that may conflict.
func (d *destination) group() string { return d.source + "\x00" + d.server }

func (inv *Inventory) conflict(upper, d *destination) error {
	dataset := d.dataset
	if upper.dataset != d.dataset {
		dataset = fmt.Sprintf("%s, with its descendants, and %s", upper.dataset, d.dataset)
	}
	p, hosts := locations{name: inv.name}, fmt.Sprintf("hosts %s and %s", upper.host, d.host)
	if upper.host.anyOf != "" && upper.host.anyOf == d.host.anyOf {
		hosts = fmt.Sprintf("any two hosts of group %q", d.host.anyOf)
	}
	jobs := fmt.Sprintf("jobs %q and %q", upper.job, d.job)
	if upper.job == d.job {
		jobs = fmt.Sprintf("job %q", d.job)
	}
	if d.source != "" {
		return fault.Usagef("put {host} into the job's name: name = \"NAME-{host}\"\nif the hosts take turns, run each with the same --host NAME",
			"%s%s: %s would both send from %s on %s, and release each other's holds there", p.file(), jobs, hosts, dataset, d.server)
	}
	return fault.Usagef("put {host} into the key to of the target\nif the hosts take turns with one pool, run each with the same --host NAME",
		"%s%s: %s would both write to %s on %s", p.file(), jobs, hosts, dataset, d.server)
}
