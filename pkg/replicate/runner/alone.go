package runner

import (
	"context"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// updateAlone takes the results of a run without targets over into the state.
func (w *work) updateAlone(ctx context.Context) {
	var failed error
	if w.scope.Naming() == nil { // all there is to do is retention
		if failed = w.pruneFailed; failed == nil {
			failed = ctx.Err()
		}
	}
	for name := range w.idle {
		a := w.state.Alone(name)
		a.Tried, a.Success = w.run.Started, w.run.Started
	}
	for _, d := range w.listing.Datasets {
		ds := w.state.Dataset(d.Name)
		ds.GUID, ds.EncryptionRoot = d.GUID, d.Get("encryptionroot")
		a := w.state.Alone(d.Name)
		a.Snapshot = w.newest(d)
		a.Tried, a.Error, a.Hint = w.run.Started, "", ""
		switch {
		case w.unsnapped[d.Name] != nil:
			a.Error, a.Hint = w.unsnapped[d.Name].Error(), fault.HintOf(w.unsnapped[d.Name])
		case failed != nil:
			a.Error, a.Hint = failed.Error(), fault.HintOf(failed)
		case d.Inconsistent() && w.scope.Naming() != nil:
			a.Error, a.Hint = "a receive into it is under way, or was interrupted: no snapshot can be taken of it",
				"resume the receive, or abort it: "+zfs.CommandLine([]string{"zfs", "receive", "-A", d.Name})
		default:
			a.Success = w.run.Started
		}
	}
}

// newest is the newest snapshot of a dataset that concerns the job, "" without
// one.
func (w *work) newest(d *zfs.Dataset) string {
	all := d.Snapshots()
	for i := len(all) - 1; i >= 0; i-- {
		if w.scope.Has(all[i].Name) {
			return all[i].Name
		}
	}
	return ""
}
