package runner

import (
	"context"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// decide returns the decision for the state v. It queries snapshot dates that retention needs and
// no listing holds.
func (w *jobRun) decide(ctx context.Context, v *replicate.RunState) *replicate.Decision {
	w.checkLeftCopies(ctx, v)
	v.Now = w.Now()
	d := replicate.Decide(v)
	if len(d.NeedCreated) > 0 {
		v.Created, v.QueryErrors = map[string]map[string]map[string]time.Time{}, map[string]error{}
		for name, snapshots := range d.NeedCreated {
			v.Created[name], v.QueryErrors[name] = w.created(ctx, name, snapshots)
		}
		d = replicate.Decide(v)
	}
	for _, p := range d.Prunings {
		if p.Refused && p.Mirror {
			p.Hint = "check what happened to the source\nto list the copies to destroy: " + w.command("prune -n "+w.job.Name) +
				"\nto destroy them once: " + w.command("prune --beyond-limit "+w.job.Name)
		} else if p.Refused {
			p.Hint = "check retention and snapshots.adopt of the job\nto list the snapshots to destroy: " + w.command("prune -n "+w.job.Name) +
				"\nto destroy them once: " + w.command("prune --beyond-limit "+w.job.Name)
		}
	}
	return d
}

// created returns the creation times of snapshots by dataset and name. For snapshots that a
// preview expects to arrive, it queries the source.
func (w *jobRun) created(ctx context.Context, side string, snapshots []string) (map[string]map[string]time.Time, error) {
	var existing, coming []string
	for _, n := range snapshots {
		if of := w.expected[side][n]; of != "" {
			coming = append(coming, of)
		} else {
			existing = append(existing, n)
		}
	}
	out, err := w.side(side).created(ctx, existing)
	if err != nil || len(coming) == 0 {
		return out, err
	}
	at, err := w.source.created(ctx, coming)
	for name, of := range w.expected[side] {
		dataset, snapshot, _ := strings.Cut(of, "@")
		if created, ok := at[dataset][snapshot]; ok {
			dataset, snapshot, _ = strings.Cut(name, "@")
			if out[dataset] == nil {
				out[dataset] = map[string]time.Time{}
			}
			out[dataset][snapshot] = created
		}
	}
	return out, err
}

// checkLeftCopies checks whether the diverged copies and orphans still exist. If a target cannot be
// queried, its copies count as existing, and their age does not grow.
func (w *jobRun) checkLeftCopies(ctx context.Context, v *replicate.RunState) {
	v.NoteOrphans()
	for _, t := range v.Targets {
		names := w.state.DivergedAt(t.Name)
		for _, g := range w.state.OrphansAt(t.Name) {
			names = append(names, g.Dataset)
		}
		if t.Failed || len(names) == 0 {
			continue
		}
		found, err := w.side(t.Name).properties(ctx, names, "guid")
		if err != nil {
			w.note("%s: cannot process renamed copies and copies deleted on the source: %v", t.Name, err)
			continue
		}
		guidOf := func(name string) uint64 {
			guid, _ := strconv.ParseUint(found[name]["guid"].Value, 10, 64) // 0 for a copy that no longer exists
			return guid
		}
		w.state.UpdateDiverged(t.Name, guidOf)
		v.UpdateOrphans(t.Target, guidOf)
	}
	w.listOverdue(ctx, v)
}

// listOverdue lists the orphans that are due to be destroyed, with their descendants.
func (w *jobRun) listOverdue(ctx context.Context, v *replicate.RunState) {
	v.DueOrphans = map[string]*zfs.Listing{}
	for _, t := range v.Targets {
		if t.Failed {
			continue
		}
		above := ""
		for _, g := range v.OverdueOrphans(t.Target) { // sorted by name
			if above != "" && strings.HasPrefix(g.Dataset, above+"/") {
				continue
			}
			above = g.Dataset
			l, err := w.side(t.Name).list(ctx, hosts.ListQuery{Dataset: g.Dataset, Recursive: true, Versions: true, NoAncestors: true})
			if err != nil {
				w.note("%s: %s was deleted on the source, its copy is kept: %v", t.Name, g.Source, err)
				continue
			}
			if v.DueOrphans[t.Name] == nil {
				v.DueOrphans[t.Name] = &zfs.Listing{}
			}
			v.DueOrphans[t.Name].Datasets = append(v.DueOrphans[t.Name].Datasets, l.Datasets...)
		}
	}
}
