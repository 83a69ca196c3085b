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

// lookAside finds out which copies that no run brings anything to are still there: those
// that were set aside, and those whose originals are gone. A target that does not say so
// is taken to have them as before, and no time counts for it.
func (w *jobRun) lookAside(ctx context.Context, v *replicate.RunState) {
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
		there := func(name string) uint64 {
			guid, _ := strconv.ParseUint(found[name]["guid"].Value, 10, 64) // none of a name that is gone
			return guid
		}
		w.state.UpdateDiverged(t.Name, there)
		v.UpdateOrphans(t.Target, there)
	}
	w.lookLeft(ctx, v)
}

// lookLeft lists the copies that may go by the time that passed, with what is below them.
func (w *jobRun) lookLeft(ctx context.Context, v *replicate.RunState) {
	v.DueOrphans = map[string]*zfs.Listing{}
	for _, t := range v.Targets {
		if t.Failed {
			continue
		}
		above := ""
		for _, g := range v.Overdue(t.Target) { // by name
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

// removeGone destroys what was decided to go, and tells how many datasets are gone. One that
// something speaks for stays, and is told of.
func (w *jobRun) removeGone(ctx context.Context, p *replicate.Pruning) (removed int) {
	if len(p.Gone) == 0 || p.Error != "" {
		return 0
	}
	defer w.doing("removing %s on %s", english.Plural(len(p.Gone), "copy", "copies"), p.Side)()
	left := p.Datasets
	p.Datasets = nil
	for i, g := range p.Gone {
		err := w.side(p.Side).do(ctx, hosts.WithRole(func(st hosts.Retention) error { return st.DestroyOrphans(ctx, []zfs.Orphan{g}) }))
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

// Denied is a key of the job file that a side does not let the job go by, as its restricted
// key, its host or its datasets are.
type Denied struct {
	Target string `json:"target"`
	Key    string `json:"key"`  // of the job file
	When   string `json:"when"` // a run fails of it
	Error  string `json:"error"`
	Hint   string `json:"hint,omitempty"`
}

// denied asks the targets that are to be kept right whether that is allowed.
func (w *jobRun) denied(ctx context.Context) (all []Denied) {
	for _, t := range w.targets {
		for _, may := range []struct {
			key, when string
			set       bool
			asks      func(hosts.Host) error
		}{
			{`on_divergence = "rotate"`, "a copy has diverged", t.target.OnDivergence == "rotate", hosts.WithRole(func(st hosts.Retention) error { return st.RenameDiverged(ctx, nil) })},
			{"mirror", "the source no longer has a snapshot of a copy", t.target.MirrorsSnapshots(), func(st hosts.Host) error { return st.Destroy(ctx, nil) }},
			{"mirror.gone", "a copy is due to go", t.target.MirrorsDatasets(), hosts.WithRole(func(st hosts.Retention) error { return st.DestroyOrphans(ctx, nil) })},
		} {
			if !may.set {
				continue
			}
			if err := t.do(ctx, may.asks); fault.ClassOf(err) == fault.Refused { // what cannot be reached, its preview tells
				all = append(all, Denied{Target: t.name, Key: may.key, When: may.when, Error: err.Error(), Hint: fault.HintOf(err)})
			}
		}
	}
	return all
}
