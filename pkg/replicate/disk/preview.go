package disk

import (
	"fmt"

	"zxfer/pkg/replicate/decide"
)

// Preview describes the disk of a target.
type Preview struct {
	State string `json:"state"` // as in decide.DiskState
	Pool  string `json:"pool"`
	GUID  uint64 `json:"guid,string"`
	Next  string `json:"next"` // what the next run would do
	// Warning is a setting of the pool that does not suit a disk that comes and goes.
	Warning string `json:"warning,omitempty"`
	Hint    string `json:"hint,omitempty"`
	// Pools are the other pools of the host, each with its GUID, while the disk is away.
	Pools []string `json:"pools,omitempty"`
}

// Preview describes the disk and the next run's actions.
func (d *Disk) Preview() *Preview {
	p := &Preview{State: string(d.State.State), Pool: d.State.Pool, GUID: d.State.GUID, Next: "sends nothing to it"}
	disk := d.side.Target.Disk
	switch {
	case d.State.State == decide.DiskAttached && !disk.Import:
		p.Next += ", because disk.import is not set"
	case d.State.State == decide.DiskAttached, d.State.State.Usable():
		p.Next = "sends to it"
		if d.State.State == decide.DiskAttached {
			p.Next = "imports it, and " + p.Next
		}
		if d.State.ScrubDue(disk.Scrub, d.set.session.Env.Now()) {
			p.Next += ", scrubs it"
		}
		if disk.Export && d.State.State != decide.DiskPresent {
			p.Next += ", and exports it"
		}
	}
	for _, o := range d.found.Imported {
		if o.GUID == d.State.GUID && o.Cached && !o.Owned {
			p.Warning = "the pool is in the cache file: the host expects it when it boots"
			p.Hint = d.side.Host.Command("zpool", "set", "cachefile=none", o.Name)
		}
	}
	if d.State.State == decide.DiskAway || d.State.State == decide.DiskForeign {
		for _, o := range d.found.Imported {
			p.Pools = append(p.Pools, fmt.Sprintf("%s (imported): %d", o.Name, o.GUID))
		}
		for _, o := range d.found.Attached {
			p.Pools = append(p.Pools, fmt.Sprintf("%s (attached): %d", o.Name, o.GUID))
		}
	}
	return p
}
