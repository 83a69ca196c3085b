package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/job"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/record"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

// Prune applies the retention of a job, without a transfer. With dryRun it
// only says what it would remove. With beyond there is no limit to what one run
// may remove; else, where any side is beyond it, nothing is removed on any.
func (r *Runner) Prune(ctx context.Context, j *replicate.Job, dryRun, beyond bool) ([]*replicate.Pruning, error) {
	store, err := record.Open(r.StateDir, j.Name)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	unlock, err := store.Lock(ctx, false)
	if errors.Is(err, record.ErrRunning) {
		return nil, fault.Refusef("wait for its end", "job %q: %w", j.Name, err)
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	w, err := r.work(j, store)
	if err != nil {
		return nil, err
	}
	if err := w.survey(ctx); err != nil {
		return nil, err
	}
	w.beyond = beyond
	var errs []error
	for _, t := range w.targets {
		l, err := w.listTarget(ctx, t)
		if err != nil {
			t.run.Error = err.Error()
			errs = append(errs, fmt.Errorf("target %s: %w", t.Name, err))
			continue
		}
		t.result = &job.BatchResult{Target: l}
	}
	all := w.decide(ctx).Prunings
	refused := slices.ContainsFunc(all, func(p *replicate.Pruning) bool { return p.Refused })
	for _, p := range all {
		if dryRun {
			w.partHeld(ctx, p)
		} else {
			w.state.Learn(p)
		}
		if !dryRun && !refused {
			w.apply(ctx, p)
		}
		if err := p.Failed(); err != nil && p.Refused {
			errs = append(errs, err)
		} else if err != nil {
			errs = append([]error{err}, errs...) // the class of the first counts
		}
	}
	if !dryRun {
		errs = append(errs, store.Save(w.state))
	}
	return all, ofJob(errors.Join(errs...))
}

func (w *work) listTarget(ctx context.Context, t *targetWork) (l zfs.Listing, err error) {
	name, err := plan.TargetName(w.source.Name, t.to.Name)
	if err != nil {
		return l, err
	}
	err = w.onTarget(ctx, t, func(st site.Site) (err error) {
		l, err = st.List(ctx, site.ListQuery{Dataset: name, Recursive: w.job.Recursive, Versions: true})
		return err
	})
	return l, err
}

// prune applies retention at the end of a run. What fails makes the run fail,
// though the data did arrive.
func (w *work) prune(ctx context.Context, all []*replicate.Pruning) {
	for _, p := range all {
		w.state.Learn(p)
		w.apply(ctx, p)
		if p.Error == "" {
			continue
		}
		w.note("retention on %s: %s", p.Side, p.Error)
		if t := w.target(p.Side); t != nil {
			t.run.Outcome, t.run.Error, t.run.Hint = outcome.Failed, "retention: "+p.Error, p.Hint
		} else if w.run.Error == "" {
			w.pruneFailed = fault.Failf(p.Hint, "retention on the source: %s", p.Error)
		}
	}
}

// side is one host's datasets as retention sees them.
type side struct {
	do    func(context.Context, func(site.Site) error) error
	count *int // of the record
}

func (w *work) side(name string) side {
	t := w.target(name)
	if t == nil {
		return side{w.onSource, &w.run.Pruned}
	}
	return side{func(ctx context.Context, f func(site.Site) error) error { return w.onTarget(ctx, t, f) }, &t.run.Pruned}
}

// partHeld finds out what is held or has clones, for showing. To destroy, ZFS
// itself says so, faster than asking it about every snapshot.
func (w *work) partHeld(ctx context.Context, p *replicate.Pruning) {
	if len(p.Remove) == 0 {
		return
	}
	var props map[string]map[string]zfs.Property
	err := w.side(p.Side).do(ctx, func(st site.Site) (err error) {
		props, err = st.Properties(ctx, p.Remove, []string{"userrefs", "clones"})
		return err
	})
	if err != nil {
		p.Error = err.Error()
		return
	}
	p.Remove = slices.DeleteFunc(p.Remove, func(n string) bool {
		of := props[n]
		held := of != nil && (of["userrefs"].Value != "0" || strings.Trim(of["clones"].Value, "-") != "")
		if held {
			p.Stay(n)
		}
		return held || of == nil
	})
}

// creations asks when snapshots were taken: by dataset and name.
func (w *work) creations(ctx context.Context, side string, names []string) (map[string]map[string]time.Time, error) {
	out := map[string]map[string]time.Time{}
	var props map[string]map[string]zfs.Property
	err := w.side(side).do(ctx, func(st site.Site) (err error) {
		props, err = st.Properties(ctx, names, []string{"creation"})
		return err
	})
	if err != nil {
		return nil, err
	}
	for full, of := range props {
		dataset, name, err := zfs.ParseSnapshot(full)
		if err != nil {
			return nil, err
		}
		seconds, err := strconv.ParseInt(of["creation"].Value, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("creation of %s: got %q, expected seconds", full, of["creation"].Value)
		}
		if out[dataset] == nil {
			out[dataset] = map[string]time.Time{}
		}
		out[dataset][name] = time.Unix(seconds, 0)
	}
	return out, nil
}
