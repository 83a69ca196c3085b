package runner

import (
	"context"

	"zxfer/pkg/replicate/disk"
)

// disk returns the disk of a target, or nil.
func (w *jobRun) disk(t *side) *disk.Disk { return w.disks.Of(t) }

// absent reports whether a target is on a disk that the run does not use.
func (w *jobRun) absent(t *side) bool {
	d := w.disk(t)
	return d != nil && !d.Usable()
}

// findDisks observes the disks of all targets.
func (w *jobRun) findDisks(ctx context.Context) {
	w.disks = disk.Find(ctx, w.session, w.run.Started, &w.shared)
}

// attachDisks imports the pools that the job may import.
func (w *jobRun) attachDisks(ctx context.Context) {
	w.findDisks(ctx)
	if err := w.disks.Attach(ctx, func(t *side) bool { return w.heldBatch(t) == nil }); err != nil {
		w.note("cannot record the state of disks: %v", err)
	}
}

// scrubDisks scrubs the pools whose scrub is due. A switch waits for no scrub.
func (w *jobRun) scrubDisks(ctx context.Context) {
	for i, t := range w.session.Targets {
		d := w.disk(t)
		if w.only != "" || d == nil {
			continue
		}
		if err := d.Scrub(ctx); err != nil {
			w.failTarget(i, d, err)
		}
	}
}

// detachDisks exports the pools that a run imported, and remembers the copies.
func (w *jobRun) detachDisks(ctx context.Context) {
	if w.disks == nil {
		return
	}
	defer w.disks.Unlock()
	for i, t := range w.session.Targets {
		d := w.disk(t)
		if d == nil {
			continue
		}
		if err := d.Detach(ctx); err != nil {
			w.failTarget(i, d, err)
		}
		w.run.Targets[i].Disk, w.run.Targets[i].DiskSince = string(d.State.State), d.State.Since
	}
}

// failTarget adds the error of a disk to the record of a target.
func (w *jobRun) failTarget(i int, d *disk.Disk, err error) {
	d.Fail(err)
	w.run.Targets[i].FailDisk(d.Err)
	w.Env.Log(w.session.Job.Name + ": " + w.session.Targets[i].Name + ": " + err.Error())
}
