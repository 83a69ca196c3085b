package job

import (
	"slices"
	"strings"

	"zxfer/pkg/hosts"
	"zxfer/pkg/preflight"
)

// Grant is what the restricted key of a host lets a doctor see.
type Grant struct {
	Host string `json:"host"`
	May  string `json:"may,omitempty"` // what the key may do, as its authorized_keys says
	// Seen and Unseen are ids of checks and measurements.
	Seen   []string `json:"seen"`
	Unseen []string `json:"unseen"`
}

// grants are those of the hosts that refused a doctor something.
func (d *doctor) grants() (all []Grant) {
	for _, e := range d.all() {
		if e.unseen == "" {
			continue
		}
		// The hint of another host begins with its name.
		_, may, _ := strings.Cut(strings.TrimPrefix(e.grant, e.Label()+": "), ": ")
		g := Grant{Host: e.Label(), May: may, Seen: []string{}, Unseen: []string{}}
		sort := func(id string, unseen bool) {
			list := &g.Seen
			if unseen {
				list = &g.Unseen
			}
			if !slices.Contains(*list, id) {
				*list = append(*list, id)
			}
		}
		for _, f := range d.report.Findings {
			if f.Host == g.Host {
				sort(f.ID, strings.HasPrefix(f.Summary, preflight.Unlooked))
			}
		}
		for _, c := range d.report.Ceilings {
			if c.Host == g.Host || c.Peer == g.Host {
				sort(c.ID, strings.Contains(c.Skipped, hosts.ErrForbidden.Error()))
			}
		}
		all = append(all, g)
	}
	return all
}
