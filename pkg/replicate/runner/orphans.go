package runner

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

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
			w.note("%s: what is set aside, or gone from the source: %v", t.Name, err)
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
		for _, g := range v.Overdue(t.Target) { // sorted by name
			if above != "" && strings.HasPrefix(g.Dataset, above+"/") {
				continue
			}
			above = g.Dataset
			l, err := w.side(t.Name).list(ctx, hosts.ListQuery{Dataset: g.Dataset, Recursive: true, Versions: true, Alone: true})
			if err != nil {
				w.note("%s: %s is gone from the source, and its copy stays: %v", t.Name, g.Source, err)
				continue
			}
			if v.DueOrphans[t.Name] == nil {
				v.DueOrphans[t.Name] = &zfs.Listing{}
			}
			v.DueOrphans[t.Name].Datasets = append(v.DueOrphans[t.Name].Datasets, l.Datasets...)
		}
	}
}

// destroyOrphans destroys the orphans that are due and returns how many it destroyed. It keeps and
// notes the ones that the host refuses to destroy.
func (w *jobRun) destroyOrphans(ctx context.Context, p *replicate.Pruning) (removed int) {
	if len(p.Gone) == 0 || p.Error != "" {
		return 0
	}
	defer w.activity("removing %s on %s", english.Plural(len(p.Gone), "copy", "copies"), p.Side)()
	left := p.Datasets
	p.Datasets = nil
	for i, g := range p.Gone {
		err := hosts.Run(ctx, w.side(p.Side), hosts.OpDestroyOrphans, []zfs.Orphan{g})
		switch {
		case err == nil:
			removed++
			p.Datasets = append(p.Datasets, left[i])
			w.state.Removed(p.Side, g.Dataset)
			w.Log(w.job.Name + ": " + g.Dataset + " on " + p.Side + " is removed: its original is gone")
		case fault.ClassOf(err) == fault.Refused && !errors.Is(err, hosts.ErrForbidden):
			w.note("%s: gone from the source: %v", p.Side, err)
		default:
			p.Error, p.Hint = "gone from the source: "+err.Error(), fault.HintOf(err)
			return removed
		}
	}
	return removed
}
