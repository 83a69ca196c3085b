package replicate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
)

// landing is where a job's target puts the copy of its source.
type landing struct {
	on, dataset string
	below       bool // with datasets below
	by          *member
	job         string
}

func (l *landing) key() string { return l.on + "\x00" + strings.ReplaceAll(l.dataset, "/", "\x01") }

// meetings refuses two hosts that would write to one dataset, or one below what the
// other keeps in order. Hosts of targets are told apart by how they are written.
func (inv *Inventory) meetings() error {
	var all []*landing
	for _, h := range inv.members() {
		for _, job := range inv.jobs {
			if inv.takes(h, job) {
				all = append(all, landings(job, h)...)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *landing) int { return strings.Compare(a.key(), b.key()) })
	var errs []error
	told := map[[2]string]bool{}
	var above []*landing // each is that of the next, or has it below
	for _, l := range all {
		for len(above) > 0 {
			if up := above[len(above)-1]; up.on == l.on && (up.dataset == l.dataset || strings.HasPrefix(l.dataset, up.dataset+"/")) {
				break
			}
			above = above[:len(above)-1]
		}
		met := slices.IndexFunc(above, func(up *landing) bool { return up.by != l.by && (up.dataset == l.dataset || up.below) })
		if met < 0 {
			above = append(above, l)
			continue
		}
		if jobs := [2]string{above[met].job, l.job}; !told[jobs] {
			told[jobs] = true
			errs = append(errs, inv.meet(above[met], l))
		}
	}
	return errors.Join(errs...)
}

func (inv *Inventory) meet(up, l *landing) error {
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
	return fault.Usagef("put {host} into the target's to; hosts that take turns with one pool have one name: --host NAME",
		"%s%s: %s would both write to %s on %s", p.file(), jobs, who, where, l.on)
}

// landings are where a host's job writes to; none where the job says it wrongly, as
// validating the host's part tells.
func landings(job map[string]any, h *member) (out []*landing) {
	filled := func(v any) string {
		s, _ := substitute(v, func(n string) (string, bool) { v, ok := h.vars[n]; return v, ok }).(string)
		return s
	}
	from, err := endpoint.Parse(filled(job["source"]))
	targets, _ := job["target"].([]any)
	for _, v := range targets {
		table, _ := v.(map[string]any)
		t := &Target{To: filled(table["to"])}
		to, wrong := endpoint.Parse(t.To)
		if err != nil || wrong != nil {
			continue
		}
		l := &landing{on: strings.ToLower(to.HostName()), dataset: t.CopyOf(from.Name, from.Name), by: h}
		if to.Local() {
			l.on = h.name
		}
		l.below, _ = job["recursive"].(bool)
		l.job, _ = job["name"].(string)
		if l.dataset != "" {
			out = append(out, l)
		}
	}
	return out
}
