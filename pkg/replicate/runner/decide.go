package runner

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/zfs"
)

// decide returns the decision for the state v. It queries snapshot dates that retention needs and
// no listing holds.
func (w *jobRun) decide(ctx context.Context, v *replicate.RunState) *replicate.Decision {
	w.checkLeftCopies(ctx, v)
	v.Now = w.Env.Now()
	d := replicate.Decide(v)
	if len(d.NeedCreated) > 0 {
		w.queryCreated(ctx, v, d.NeedCreated)
		d = replicate.Decide(v)
	}
	for _, p := range d.Prunings {
		if p.Refused && p.Mirror {
			p.Hint = "check what happened to the source\nto list the copies to destroy: " + w.Env.Command("prune -n "+w.session.Job.Name) +
				"\nto destroy them once: " + w.Env.Command("prune --beyond-limit "+w.session.Job.Name)
		} else if p.Refused {
			p.Hint = "check retention and snapshots.adopt of the job\nto list the snapshots to destroy: " + w.Env.Command("prune -n "+w.session.Job.Name) +
				"\nto destroy them once: " + w.Env.Command("prune --beyond-limit "+w.session.Job.Name)
		}
	}
	return d
}

// queryCreated queries creation times, by side. A received snapshot keeps the creation time of its
// original. So if the source is this host, zxfer does not query it again on a target. A remote source
// could report other times later, and retention would destroy the wrong snapshots.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_recv.c (dmu_recv_end_sync)
func (w *jobRun) queryCreated(ctx context.Context, v *replicate.RunState, need map[string][]string) {
	v.Created, v.QueryErrors = map[string]map[string]map[string]time.Time{}, map[string]error{}
	ofOriginals := map[uint64]time.Time{}
	if names, ok := need[replicate.SourceSide]; ok {
		v.Created[replicate.SourceSide], v.QueryErrors[replicate.SourceSide] = w.created(ctx, replicate.SourceSide, names)
		for _, d := range v.Source.Datasets {
			for _, s := range d.Snapshots() {
				if at, ok := v.Created[replicate.SourceSide][d.Name][s.Name]; ok && w.session.Source.Host.Local() {
					ofOriginals[s.GUID] = at
				}
			}
		}
	}
	for _, t := range v.Targets {
		names, ok := need[t.Name]
		if !ok {
			continue
		}
		known := map[string]time.Time{}
		for _, d := range t.Listing.Datasets {
			for _, s := range d.Snapshots() {
				if at, ok := ofOriginals[s.GUID]; ok {
					known[s.In(d.Name)] = at
				}
			}
		}
		unknown := slices.DeleteFunc(slices.Clone(names), func(n string) bool { _, ok := known[n]; return ok })
		v.Created[t.Name], v.QueryErrors[t.Name] = w.created(ctx, t.Name, unknown)
		for _, n := range names {
			if at, ok := known[n]; ok && v.QueryErrors[t.Name] == nil {
				session.AddCreated(v.Created[t.Name], n, at)
			}
		}
	}
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
	out, err := w.session.Side(side).Created(ctx, existing)
	if err != nil || len(coming) == 0 {
		return out, err
	}
	at, err := w.session.Source.Created(ctx, coming)
	for name, of := range w.expected[side] {
		dataset, snapshot, _ := strings.Cut(of, "@")
		if created, ok := at[dataset][snapshot]; ok {
			session.AddCreated(out, name, created)
		}
	}
	return out, err
}

// checkLeftCopies checks whether the diverged copies and orphans still exist. If a target cannot be
// queried, its copies count as existing, and their age does not grow.
func (w *jobRun) checkLeftCopies(ctx context.Context, v *replicate.RunState) {
	v.NoteOrphans()
	for _, t := range v.Targets {
		names := w.session.State.DivergedAt(t.Name)
		for _, g := range w.session.State.OrphansAt(t.Name) {
			names = append(names, g.Dataset)
		}
		if t.Failed || len(names) == 0 {
			continue
		}
		found, err := w.session.Side(t.Name).Properties(ctx, names, "guid")
		if err != nil {
			w.note("%s: cannot process renamed copies and copies deleted on the source: %v", t.Name, err)
			continue
		}
		guidOf := func(name string) uint64 {
			guid, _ := strconv.ParseUint(found[name]["guid"].Value, 10, 64) // 0 for a copy that no longer exists
			return guid
		}
		w.session.State.UpdateDiverged(t.Name, guidOf)
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
			l, err := w.session.Side(t.Name).List(ctx, hosts.ListQuery{Dataset: g.Dataset, Recursive: true, Versions: true, NoAncestors: true})
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
