package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/record"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

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
	may := replicate.Unmoved(w.view(), w.settled.Datasets)
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
				found[i], err = st.Properties(gctx, copies, replicate.CopyProperties())
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
			there := &zfs.Dataset{Properties: found[i][t.CopyOf(w.source.Name, n)]}
			if w.settled.Datasets[n].CopyMoved(t.Name, there, w.state.Arrival(n, t.Name)) {
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
func (w *work) settle(prunings []*replicate.Pruning) {
	next := &record.Settled{Version: w.settled.Version, Job: w.settled.Job, Datasets: replicate.Settle(w.tried(), prunings)}
	for name := range w.idle {
		next.Datasets[name] = w.settled.Datasets[name]
	}
	if err := w.store.SaveSettled(next); err != nil {
		w.note("what is up to date could not be remembered: %v", err)
	}
}
