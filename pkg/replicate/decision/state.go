package decision

import (
	"maps"
	"slices"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
)

// EndLocal records the result of a run without targets. missed holds the errors of snapshots, by
// dataset, failed is the error of pruning.
func (v *Survey) EndLocal(missed map[string]error, failed error) {
	for name := range v.Unchanged {
		v.State.Local(name).Record(v.Started, nil)
	}
	for _, d := range v.Source.Datasets {
		v.State.Dataset(d.Name).Identify(d)
		a := v.State.Local(d.Name)
		a.Snapshot = ""
		for _, s := range d.Snapshots() {
			if v.Scope.Has(s.Name) {
				a.Snapshot = s.Name
			}
		}
		err := missed[d.Name]
		switch {
		case err != nil:
		case v.Scope.Naming() == nil: // the run only prunes
			err = failed
		case d.Inconsistent():
			err = fault.Refusef("resume the receive, or abort it: "+v.SourceAt.Command("zfs", "receive", "-A", d.Name),
				"a receive into it is running, or was interrupted: no snapshot can be taken of it")
		}
		a.Record(v.Started, err)
	}
}

// Forget drops state that is outside the job now, so that status does not report it as late. Its
// holds become stale (see holds --gc).
func (v *Survey) Forget() {
	concerned := map[string]bool{}
	maps.Copy(concerned, v.Unchanged)
	maps.Copy(concerned, v.Waiting)
	for _, d := range v.Source.Datasets {
		concerned[d.Name] = true
	}
	for _, d := range v.Source.Datasets {
		if known := v.State.Datasets[d.Name]; known != nil {
			newest := "" // of the job's own
			for _, s := range d.Snapshots() {
				if _, own := v.Scope.Own(s.Name); own {
					newest = s.Name
				}
			}
			maps.DeleteFunc(known.Consistent, func(snapshot string, _ bool) bool {
				for _, a := range known.Targets {
					if a.Base == snapshot {
						return false
					}
				}
				return snapshot != newest
			})
		}
	}
	maps.DeleteFunc(v.State.Datasets, func(name string, _ *replicate.DatasetState) bool { return !concerned[name] })
	maps.DeleteFunc(v.State.Disks, func(name string, d *replicate.DiskState) bool { return d == nil || v.Job.DiskTarget(name) == nil })
	v.State.Orphans = slices.DeleteFunc(v.State.Orphans, func(g *replicate.Orphan) bool {
		return !slices.ContainsFunc(v.Job.Targets, func(t replicate.Target) bool { return t.Name == g.Target })
	})
	for source, d := range v.State.Datasets {
		maps.DeleteFunc(d.Targets, func(name string, _ *replicate.CopyState) bool {
			return v.Excluded[name][source] || !slices.ContainsFunc(v.Job.Targets, func(t replicate.Target) bool { return t.Name == name })
		})
		if len(v.Job.Targets) > 0 {
			d.Local = nil
		}
	}
}
