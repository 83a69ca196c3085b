package runner

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/zfs"
)

// decider decides what a run does after its transfers.
type decider struct {
	s    *session.Session
	v    *decision.RunState
	note func(format string, args ...any)
	// expected maps the snapshots that a preview expects to arrive to their snapshots on the source,
	// by side. Names are full. It is nil in a run.
	expected map[string]map[string]string
}

// decide returns the decision for the state d.v. It queries snapshot dates that retention needs and
// no listing holds, and records which diverged copies and orphans still exist.
func (d *decider) decide(ctx context.Context) *decision.Decision {
	d.checkLeftCopies(ctx)
	d.v.Now = d.s.Env.Now()
	made := decision.Decide(d.v)
	if len(made.NeedCreated) > 0 {
		d.queryCreated(ctx, made.NeedCreated)
		made = decision.Decide(d.v)
	}
	for _, p := range made.Prunings {
		if !p.Refused {
			continue
		}
		check, what := "retention and snapshots.adopt of the job", "snapshots"
		if p.Mirror {
			check, what = "what happened to the source", "copies"
		}
		p.Hint = "check " + check + "\nto list the " + what + " to destroy: " + d.s.Env.Command("prune -n "+d.s.Job.Name) +
			"\nto destroy them once: " + d.s.Env.Command("prune --beyond-limit "+d.s.Job.Name)
	}
	return made
}

// queryCreated queries creation times, by side. A received snapshot keeps the creation time of its
// original. So if the source is this host, zxfer does not query it again on a target. A remote source
// could report other times later, and retention would destroy the wrong snapshots.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_recv.c (dmu_recv_end_sync)
func (d *decider) queryCreated(ctx context.Context, need map[string][]string) {
	v := d.v
	v.Created, v.QueryErrors = map[string]map[string]map[string]time.Time{}, map[string]error{}
	ofOriginals := map[uint64]time.Time{}
	if names, ok := need[replicate.SourceSide]; ok {
		v.Created[replicate.SourceSide], v.QueryErrors[replicate.SourceSide] = d.created(ctx, replicate.SourceSide, names)
		for _, of := range v.Survey.Source.Datasets {
			for _, s := range of.Snapshots() {
				if at, ok := v.Created[replicate.SourceSide][of.Name][s.Name]; ok && d.s.Source.Host.Local() {
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
		for _, of := range t.Listing.Datasets {
			for _, s := range of.Snapshots() {
				if at, ok := ofOriginals[s.GUID]; ok {
					known[s.In(of.Name)] = at
				}
			}
		}
		unknown := slices.DeleteFunc(slices.Clone(names), func(n string) bool { _, ok := known[n]; return ok })
		v.Created[t.Name], v.QueryErrors[t.Name] = d.created(ctx, t.Name, unknown)
		for _, n := range names {
			if at, ok := known[n]; ok && v.QueryErrors[t.Name] == nil {
				session.AddCreated(v.Created[t.Name], n, at)
			}
		}
	}
}

// created returns the creation times of snapshots by dataset and name. For snapshots that a
// preview expects to arrive, it queries the source.
func (d *decider) created(ctx context.Context, side string, snapshots []string) (map[string]map[string]time.Time, error) {
	var existing, coming []string
	for _, n := range snapshots {
		if of := d.expected[side][n]; of != "" {
			coming = append(coming, of)
		} else {
			existing = append(existing, n)
		}
	}
	out, err := d.s.Side(side).Created(ctx, existing)
	if err != nil || len(coming) == 0 {
		return out, err
	}
	at, err := d.s.Source.Created(ctx, coming)
	for name, of := range d.expected[side] {
		dataset, snapshot, _ := strings.Cut(of, "@")
		if created, ok := at[dataset][snapshot]; ok {
			session.AddCreated(out, name, created)
		}
	}
	return out, err
}

// checkLeftCopies checks whether the diverged copies and orphans still exist. If a target cannot be
// queried, its copies count as existing, and their age does not grow.
func (d *decider) checkLeftCopies(ctx context.Context) {
	d.v.Survey.NoteOrphans()
	for _, t := range d.v.Targets {
		names := d.s.State.DivergedAt(t.Name)
		for _, g := range d.s.State.OrphansAt(t.Name) {
			names = append(names, g.Dataset)
		}
		if t.Failed || len(names) == 0 {
			continue
		}
		found, err := d.s.Side(t.Name).Properties(ctx, names, "guid")
		if err != nil {
			d.note("%s: cannot process renamed copies and copies deleted on the source: %v", t.Name, err)
			continue
		}
		guidOf := func(name string) uint64 {
			guid, _ := strconv.ParseUint(found[name]["guid"].Value, 10, 64) // 0 for a copy that no longer exists
			return guid
		}
		d.s.State.UpdateDiverged(t.Name, guidOf)
		d.v.Survey.UpdateOrphans(t.Target, guidOf)
	}
	d.listOverdue(ctx)
}

// listOverdue lists the orphans that are due to be destroyed, with their descendants.
func (d *decider) listOverdue(ctx context.Context) {
	v := d.v
	v.DueOrphans = map[string]*zfs.Listing{}
	for _, t := range v.Targets {
		if t.Failed {
			continue
		}
		above := ""
		for _, g := range v.Survey.OverdueOrphans(t.Target) { // sorted by name
			if above != "" && strings.HasPrefix(g.Dataset, above+"/") {
				continue
			}
			above = g.Dataset
			l, err := d.s.Side(t.Name).List(ctx, hosts.ListQuery{Dataset: g.Dataset, Recursive: true, Versions: true, NoAncestors: true})
			if err != nil {
				d.note("%s: %s was deleted on the source, its copy is kept: %v", t.Name, g.Source, err)
				continue
			}
			if v.DueOrphans[t.Name] == nil {
				v.DueOrphans[t.Name] = &zfs.Listing{}
			}
			v.DueOrphans[t.Name].Datasets = append(v.DueOrphans[t.Name].Datasets, l.Datasets...)
		}
	}
}
