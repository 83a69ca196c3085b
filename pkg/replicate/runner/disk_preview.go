package runner

import (
	"fmt"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate/decide"
)

// preview returns the preview of a target whose disk is not imported.
func (d *diskRun) preview(b *batch) *TargetPreview {
	p := &TargetPreview{Target: d.Name, To: d.Target.To, Disk: d.previewDisk()}
	if b.err != nil {
		p.Error, p.Hint = b.err.Error(), fault.HintOf(b.err)
	}
	return p
}

// previewDisk describes the disk and the next run's actions.
func (d *diskRun) previewDisk() *DiskPreview {
	p := &DiskPreview{State: string(d.state.State), Pool: d.state.Pool, GUID: d.state.GUID, Next: "sends nothing to it"}
	disk := d.Target.Disk
	switch {
	case d.state.State == decide.DiskAttached && !disk.Import:
		p.Next += ", because disk.import is not set"
	case d.state.State == decide.DiskAttached, d.state.State.Usable():
		p.Next = "sends to it"
		if d.state.State == decide.DiskAttached {
			p.Next = "imports it, and " + p.Next
		}
		if d.state.ScrubDue(disk.Scrub, d.Env.Now()) {
			p.Next += ", scrubs it"
		}
		if disk.Export && d.state.State != decide.DiskPresent {
			p.Next += ", and exports it"
		}
	}
	for _, o := range d.found.Imported {
		if o.GUID == d.state.GUID && o.Cached && !o.Owned {
			p.Warning = "the pool is in the cache file: the host expects it when it boots"
			p.Hint = d.Host.Command("zpool", "set", "cachefile=none", o.Name)
		}
	}
	if d.state.State == decide.DiskAway || d.state.State == decide.DiskForeign {
		for _, o := range d.found.Imported {
			p.Pools = append(p.Pools, fmt.Sprintf("%s (imported): %d", o.Name, o.GUID))
		}
		for _, o := range d.found.Attached {
			p.Pools = append(p.Pools, fmt.Sprintf("%s (attached): %d", o.Name, o.GUID))
		}
	}
	return p
}
