package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/replicate/record"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

// A dataset is settled after a run that had nothing to send, to hold or to
// remove for it. As long as its snapshots and those of its copies are what
// they were, so is that, and the run leaves it out: no snapshot of it is
// listed. zfs.ChangedProperty tells that, at the price of the dataset alone;
// the listing of its snapshots and bookmarks costs as much again for each of
// them.
//
// Only that nothing is to be done rests on what was remembered. Whatever is
// done is decided by a listing of this run, so that what leaves
// zfs.ChangedProperty alone (bookmarks, holds) cannot mislead it: a dataset
// with nothing to send or to remove needs neither.

// changeTicks is how many seconds must lie between the last change of a
// dataset's snapshots and the beginning of a listing that is remembered: the
// property counts whole seconds, and another change within the same second
// would not show.
const changeTicks = 2

// worthwhile is the part of the datasets, as 1/n, that may have changed for
// the others to be left out: of those that did, the properties are read twice.
const worthwhile = 4

// jobPrint stands for the settings of the job: other settings, other work.
func (w *work) jobPrint() string {
	text, err := json.Marshal(w.job)
	if err != nil {
		return "" // under no name is anything settled
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// print stands for all about a dataset that decides whether there is anything
// to do. A promotion moves snapshots without a trace in the clone's
// zfs.ChangedProperty, but changes the origin.
func print(get func(property string) string, base uint64) string {
	return fmt.Sprintf("%s %s %q %q %d", get("guid"), get(zfs.ChangedProperty), get("origin"), get("encryptionroot"), base)
}

// copyProperties are what print needs of a copy, and what must be unset.
func copyProperties() []string {
	return []string{"guid", zfs.ChangedProperty, "origin", "encryptionroot", "receive_resume_token"}
}

// surveyChanged is survey for a run: it leaves out what is settled. Where
// little is, or where that cannot be told, it lists everything.
func (w *work) surveyChanged(ctx context.Context) error {
	w.settled = w.store.Settled(w.jobPrint())
	if len(w.settled.Datasets) == 0 || w.scope.Naming() != nil && !w.job.Snapshots.SkipUnchanged {
		return w.survey(ctx)
	}
	if err := w.list(ctx, site.ListQuery{Dataset: w.source.Name, Recursive: w.job.Recursive, Changed: true, Alone: true}); err != nil {
		return err
	}
	var may []string
	for _, d := range w.listing.Datasets {
		if w.sourceSettled(d) {
			may = append(may, d.Name)
		}
	}
	if (len(w.listing.Datasets)-len(may))*worthwhile > len(w.listing.Datasets) {
		return w.survey(ctx)
	}
	moved, err := w.movedCopies(ctx, may)
	if err != nil {
		return w.survey(ctx) // the batch of the target will say what is wrong there
	}
	for _, name := range may {
		if !moved[name] {
			w.idle[name] = true
		}
	}
	return w.listActive(ctx)
}

// sourceSettled tells that a dataset of the source is as it was, and needs no
// snapshot.
func (w *work) sourceSettled(d *zfs.Dataset) bool {
	s, known := w.settled.Datasets[d.Name], w.state.Datasets[d.Name]
	if s == nil || known == nil || d.SnapshotsChanged() == 0 || d.Inconsistent() || s.Source != print(d.Get, 0) {
		return false
	}
	for _, t := range w.targets {
		if a := known.Targets[t.Name]; a == nil || a.Error != "" || s.Targets[t.Name] == "" {
			return false
		}
	}
	return w.scope.Naming() == nil || s.Own && d.Get("written") == "0"
}

// movedCopies finds the datasets of which any copy is not as it was.
func (w *work) movedCopies(ctx context.Context, names []string) (map[string]bool, error) {
	found := make([]map[string]map[string]zfs.Property, len(w.targets))
	g, gctx := errgroup.WithContext(ctx)
	for i, t := range w.targets {
		var copies []string
		for _, n := range names {
			copies = append(copies, t.CopyOf(w.source.Name, n))
		}
		g.Go(func() error {
			return w.onTarget(gctx, t, func(st site.Site) (err error) {
				found[i], err = st.Properties(gctx, copies, copyProperties())
				return err
			})
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	moved := map[string]bool{}
	for i, t := range w.targets {
		for _, n := range names {
			d := zfs.Dataset{Properties: found[i][t.CopyOf(w.source.Name, n)]}
			if d.ResumeToken() != "" || w.settled.Datasets[n].Targets[t.Name] != print(d.Get, w.state.Arrival(n, t.Name).BaseGUID) {
				moved[n] = true
			}
		}
	}
	return moved, nil
}

// listActive lists the datasets that are not left out, with their snapshots.
func (w *work) listActive(ctx context.Context) error {
	if len(w.idle) == 0 {
		return w.survey(ctx)
	}
	var names []string
	for _, d := range w.listing.Datasets {
		if !w.idle[d.Name] {
			names = append(names, d.Name)
		}
	}
	w.listing.Datasets = nil
	if len(names) == 0 {
		return nil
	}
	return w.onSource(ctx, func(st site.Site) error {
		l, err := st.List(ctx, site.ListQuery{Dataset: w.source.Name, Only: names, Versions: true, Changed: true})
		w.listing = l
		return err
	})
}

// settle writes down what the run found nothing to do for. That it cannot is
// no failure of the run: the next one looks at everything again.
func (w *work) settle() {
	next := &record.Settled{Version: w.settled.Version, Job: w.settled.Job, Datasets: map[string]*record.SettledDataset{}}
	for name := range w.idle {
		next.Datasets[name] = w.settled.Datasets[name]
	}
	of := w.outcomes()
	for _, d := range w.listing.Datasets {
		if s := w.settledNow(d, of); s != nil {
			next.Datasets[d.Name] = s
		}
	}
	if err := w.store.SaveSettled(next); err != nil {
		w.note("what is up to date could not be remembered: %v", err)
	}
}

// outcomes are the results of every target, by dataset of the source.
func (w *work) outcomes() map[*targetWork]map[string]*unsent {
	of := map[*targetWork]map[string]*unsent{}
	for _, t := range w.targets {
		of[t] = map[string]*unsent{}
		if t.result == nil || t.run.Error != "" {
			continue
		}
		seen := t.seen()
		for _, r := range t.result.Datasets {
			if r.Err == nil && r.Steps == 0 && r.There != "" {
				of[t][r.Source] = &unsent{arrive: r.Arrive.GUID, there: seen.Dataset(t.CopyOf(w.source.Name, r.Source))}
			}
		}
	}
	return of
}

// unsent is a dataset that had nothing to be sent.
type unsent struct {
	arrive uint64 // GUID of the newest snapshot to send
	there  *zfs.Dataset
}

// settledNow is what a dataset's being settled depends on, nil where it is
// not: something was done, or is still to be done, or may have happened unseen.
func (w *work) settledNow(d *zfs.Dataset, of map[*targetWork]map[string]*unsent) *record.SettledDataset {
	if w.unsettled[d.Name] || d.Inconsistent() || !settledBy(d, w.listing.Began) {
		return nil
	}
	s := &record.SettledDataset{Source: print(d.Get, 0), Targets: map[string]string{}}
	if latest, any := d.Latest(); any {
		_, s.Own = w.scope.Own(latest.Name)
	}
	for _, t := range w.targets {
		o, a := of[t][d.Name], w.state.Arrival(d.Name, t.Name)
		if o == nil || o.there == nil || a.BaseGUID != o.arrive || a.Moving ||
			o.there.ResumeToken() != "" || !settledBy(o.there, t.result.Target.Began) {
			return nil
		}
		s.Targets[t.Name] = print(o.there.Get, a.BaseGUID)
	}
	return s
}

// settledBy tells that any change of a dataset's snapshots behind a listing
// that began then shows in zfs.ChangedProperty.
func settledBy(d *zfs.Dataset, began int64) bool {
	changed := d.SnapshotsChanged()
	return changed != 0 && changed+changeTicks <= began
}
