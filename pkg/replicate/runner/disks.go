package runner

import (
	"context"

	"zxfer/pkg/fault"
	"zxfer/pkg/job/send"
	"zxfer/pkg/replicate/damage"
	"zxfer/pkg/replicate/disk"
	"zxfer/pkg/replicate/session"
)

// attachDisks observes the disks of the targets, and imports the pools that the job may import for targets that are
// not held.
func attachDisks(ctx context.Context, p *pass, held map[string]string) *disk.Set {
	disks := disk.Find(ctx, p.s, p.rec.Started, p.ledger.Locker())
	if err := disks.Attach(ctx, func(t *session.Side) bool { return held[t.Name] == "" }); err != nil {
		p.journal.Note("cannot record the state of disks: %v", err)
	}
	return disks
}

// withoutDisk returns the result for a target whose disk the run cannot use, or nil.
func withoutDisk(disks *disk.Set, t *session.Side) *batch {
	d := disks.Of(t)
	if d == nil || d.Err == nil && d.Usable() {
		return nil
	}
	return &batch{to: t, result: &send.BatchResult{Report: &send.Report{}}, err: d.Err, absent: true, refused: fault.ClassOf(d.Err) == fault.Refused}
}

// usable returns the targets among some that are not on disks, or on disks that the run uses.
func usable(disks *disk.Set, some []*session.Side) (all []*session.Side) {
	for _, t := range some {
		if withoutDisk(disks, t) == nil {
			all = append(all, t)
		}
	}
	return all
}

// scrubDisks scrubs the pools whose scrub is due. A switch waits for no scrub.
func scrubDisks(ctx context.Context, p *pass, disks *disk.Set) {
	for i, t := range p.s.Targets {
		if d := disks.Of(t); d != nil && p.order.only == "" {
			failDisk(p, i, d, d.Scrub(ctx))
		}
	}
}

// detachDisks exports the pools that a run imported, and remembers the copies.
func detachDisks(ctx context.Context, p *pass, disks *disk.Set) {
	defer disks.Unlock()
	for i, t := range p.s.Targets {
		if d := disks.Of(t); d != nil {
			failDisk(p, i, d, d.Detach(ctx))
			p.rec.Targets[i].Disk, p.rec.Targets[i].DiskSince = string(d.State.State), d.State.Since
		}
	}
}

// failDisk adds the error of a disk, if any, to the record of its target.
func failDisk(p *pass, i int, d *disk.Disk, err error) {
	if err == nil {
		return
	}
	d.Fail(err)
	p.rec.Targets[i].FailDisk(d.Err)
	p.journal.Log("%s: %v", p.s.Targets[i].Name, err)
}

// askDamage asks the source, and the targets that the run sent to, for data errors. It does not wait for the
// answers. A disk is asked after its scrub.
func askDamage(ctx context.Context, p *pass, disks *disk.Set) *damage.Check {
	all := []*session.Side{p.s.Source}
	for i, t := range p.s.Targets {
		if r := p.rec.Targets[i]; disks.Of(t) == nil && r.Sent > 0 && r.Error == "" {
			all = append(all, t)
		}
	}
	return damage.Start(ctx, p.s, all)
}

// recordDamage adds the pools with data errors to the record and the state.
func recordDamage(p *pass, r damage.Result) {
	p.rec.Damaged, p.s.State.Pools = r.Damaged, r.Pools
	p.rec.Notes = append(p.rec.Notes, r.Notes...)
}
