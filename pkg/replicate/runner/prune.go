package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/job"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/record"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

// side is one host's datasets as retention sees them.
type side struct {
	name  string // replicate.SourceSide, or the target's
	grid  *replicate.Grid
	do    func(context.Context, func(site.Site) error) error
	count *int // of the record
}

// Pruning is what retention removes on one side.
type Pruning struct {
	Side      string   `json:"side"`      // replicate.SourceSide, or the target's name
	Remove    []string `json:"remove"`    // full names
	Kept      int      `json:"kept"`      // snapshots of the job that stay
	Held      []string `json:"held"`      // would go, but are held or have clones
	Protected int      `json:"protected"` // bases of increments, and what interrupted receives need
	// Doubted are those whose dates are not believed.
	Doubted []string `json:"doubted,omitempty"`
	Error   string   `json:"error,omitempty"`
	Hint    string   `json:"hint,omitempty"`
	// Refused tells that Remove is more than one run may remove: all of it stays.
	Refused bool `json:"refused,omitempty"`

	// pruned are the histories of datasets with nothing to go once Remove is gone.
	pruned []*replicate.History
}

// failed is why the side keeps what it should not, as an error.
func (p *Pruning) failed() error {
	switch {
	case p.Error == "":
		return nil
	case p.Refused:
		return fault.Refusef(p.Hint, "%s: %s", p.Side, p.Error)
	}
	return fault.Failf(p.Hint, "%s: %s", p.Side, p.Error)
}

// Prune applies the retention of a job, without a transfer. With dryRun it
// only says what it would remove. With beyond there is no limit to what one run
// may remove; else, where any side is beyond it, nothing is removed on any.
func (r *Runner) Prune(ctx context.Context, j *replicate.Job, dryRun, beyond bool) ([]*Pruning, error) {
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
	w.showing, w.beyond = dryRun, beyond
	var errs []error
	for _, t := range w.targets {
		l, err := w.listTarget(ctx, t)
		if err != nil {
			t.run.Error = err.Error()
			errs = append(errs, fmt.Errorf("target %s: %w", t.Name, err))
			continue
		}
		t.result = &job.BatchResult{Target: l, Partial: job.Partial(&l)}
	}
	all := w.prunings(ctx)
	refused := slices.ContainsFunc(all, func(p *Pruning) bool { return p.Refused })
	for _, p := range all {
		if !dryRun && !refused {
			w.apply(ctx, p)
		}
		if err := p.failed(); err != nil && p.Refused {
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
func (w *work) prune(ctx context.Context) {
	for _, p := range w.prunings(ctx) {
		w.apply(ctx, p)
		if p.Error == "" {
			continue
		}
		w.note("retention on %s: %s", p.Side, p.Error)
		for _, t := range w.targets {
			if t.Name == p.Side {
				t.run.Outcome, t.run.Error, t.run.Hint = record.Failed, "retention: "+p.Error, p.Hint
			}
		}
		if p.Side == replicate.SourceSide && w.run.Error == "" {
			w.pruneFailed = fault.Failf(p.Hint, "retention on the source: %s", p.Error)
		}
	}
	w.pruneBookmarks(ctx)
}

// prunings finds what retention removes on every side that was seen.
func (w *work) prunings(ctx context.Context) []*Pruning {
	root := w.source.Name
	var out []*Pruning
	sourceSide := w.side(nil)
	if w.job.Retention != nil {
		p := &Pruning{Side: replicate.SourceSide, Remove: []string{}, Held: []string{}}
		w.find(ctx, sourceSide, p, w.listing.Datasets, func(d *zfs.Dataset) (string, map[uint64]bool) {
			return d.Name, w.bases(d)
		})
		out = append(out, p)
	}
	for _, t := range w.targets {
		if t.Retention == nil || t.result == nil || t.run.Error != "" {
			continue
		}
		target, err := plan.TargetName(root, t.to.Name)
		if err != nil {
			continue // its batch failed for it
		}
		var there []*zfs.Dataset
		sources := map[string]*zfs.Dataset{}
		for _, d := range t.result.Target.Datasets {
			// Of a dataset that the source has no more, or that the job does
			// not select, the copy stays as it is.
			if s := w.listing.Find(root + strings.TrimPrefix(d.Name, target)); s != nil {
				there, sources[d.Name] = append(there, d), s
			}
		}
		p := &Pruning{Side: t.Name, Remove: []string{}, Held: []string{}}
		w.find(ctx, w.side(t), p, there, func(d *zfs.Dataset) (string, map[uint64]bool) {
			s := sources[d.Name]
			protected := map[uint64]bool{}
			for guid := range t.result.Partial {
				protected[guid] = true
			}
			base, ok := replicate.Base(s, d)
			if ok {
				protected[base.GUID] = true
			} else { // nothing in common: another dataset, which is not ours to prune
				for _, v := range d.Versions {
					protected[v.GUID] = true
				}
			}
			return s.Name, protected
		})
		out = append(out, p)
	}
	return out
}

// side of a target, or with nil the source.
func (w *work) side(t *targetWork) *side {
	if t == nil {
		return &side{name: replicate.SourceSide, grid: w.job.Retention, do: w.onSource, count: &w.run.Pruned}
	}
	return &side{name: t.Name, grid: t.Retention, count: &t.run.Pruned, do: func(ctx context.Context, f func(site.Site) error) error {
		return w.onTarget(ctx, t, f)
	}}
}

func (w *work) copyOf(t *targetWork, source string) *zfs.Dataset {
	return t.copies.of(&t.result.Target, w.copyName(t, source))
}

// index finds datasets of a listing by name.
type index struct {
	listing *zfs.Listing
	byName  map[string]*zfs.Dataset
}

func (x *index) of(l *zfs.Listing, name string) *zfs.Dataset {
	if x.listing != l {
		x.listing, x.byName = l, make(map[string]*zfs.Dataset, len(l.Datasets))
		for _, d := range l.Datasets {
			x.byName[d.Name] = d
		}
	}
	return x.byName[name]
}

// find fills in what retention removes of some datasets of a side.
func (w *work) find(ctx context.Context, s *side, p *Pruning, datasets []*zfs.Dataset, of func(*zfs.Dataset) (source string, protected map[uint64]bool)) {
	type candidate struct {
		source    string
		d         *zfs.Dataset
		known     *record.Dataset
		protected map[uint64]bool
		print     string
	}
	var some []candidate
	var adopted []string
	for _, d := range datasets {
		source, protected := of(d)
		known := w.state.Dataset(source)
		c := candidate{source, d, known, protected, w.fingerprint(s.grid, d, protected)}
		if past := known.Past[s.name]; known.Pruned[s.name] == c.print && (past == nil || past.Doubts() == 0) {
			p.Kept += w.scope.Count(d)
			continue
		}
		some = append(some, c)
		for _, name := range w.scope.Adopted(d) {
			adopted = append(adopted, d.Name+"@"+name)
		}
	}
	created, err := w.creations(ctx, s, adopted)
	if err != nil {
		p.Error = err.Error()
		for _, c := range some {
			w.unsettled[c.source] = true
		}
		return
	}
	var names []string
	for _, c := range some {
		if c.known.Past == nil {
			c.known.Past = map[string]*replicate.History{}
		}
		past := c.known.Past[s.name].Of(c.d.GUID)
		c.known.Past[s.name] = past
		found := s.grid.Prunable(c.d, w.scope, created[c.d.Name], c.protected, past, w.Now())
		if found.Beyond > w.job.PruneAtMost() && !w.beyond {
			w.refuse(p, c.d.Name, found.Beyond)
		}
		for _, n := range found.Doubted {
			p.Doubted = append(p.Doubted, c.d.Name+"@"+n)
		}
		gone := found.Remove
		p.Kept += w.scope.Count(c.d) - len(gone)
		for _, v := range c.d.Snapshots() {
			if c.protected[v.GUID] {
				p.Protected++
			}
		}
		for _, v := range gone {
			names = append(names, v.In(c.d.Name))
		}
		if found.Waiting {
			delete(c.known.Pruned, s.name)
		} else {
			p.pruned = append(p.pruned, past)
		}
		if len(gone) == 0 && !found.Waiting {
			if c.known.Pruned == nil {
				c.known.Pruned = map[string]string{}
			}
			c.known.Pruned[s.name] = c.print
		}
		if found.Waiting || len(gone) > 0 {
			w.unsettled[c.source] = true
		}
	}
	if len(names) == 0 {
		return
	}
	p.Remove = names
	if w.showing {
		w.partHeld(ctx, s, p)
	}
}

// refuse keeps a side as it is: more would go than time and newer snapshots
// explain.
func (w *work) refuse(p *Pruning, dataset string, beyond int) {
	p.Refused = true
	p.Error = fmt.Sprintf("%s of %s would go that earlier runs kept and nothing has overtaken since, more than the %d that one run may remove (prune_limit): nothing was removed",
		english.Plural(beyond, "snapshot", ""), dataset, w.job.PruneAtMost())
	p.Hint = "the job's retention or adopt was changed, or something is wrong; look: " + w.command("prune -n "+w.job.Name) +
		"\nto remove them, once: " + w.command("prune --beyond-limit "+w.job.Name)
}

// partHeld finds out what is held or has clones, for showing. To destroy, ZFS
// itself says so, faster than asking it about every snapshot.
func (w *work) partHeld(ctx context.Context, s *side, p *Pruning) {
	var props map[string]map[string]zfs.Property
	err := s.do(ctx, func(st site.Site) (err error) {
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
			p.stays(n)
		}
		return held || of == nil
	})
}

// stays notes a snapshot that cannot be removed.
func (p *Pruning) stays(name string) {
	p.Held = append(p.Held, name)
	p.Kept++
}

// fingerprint is all that retention depends on.
func (w *work) fingerprint(g *replicate.Grid, d *zfs.Dataset, protected map[uint64]bool) string {
	latest, _ := d.Latest()
	var held []uint64
	for _, v := range d.Versions {
		if v.Kind == zfs.Snapshot && protected[v.GUID] {
			held = append(held, v.GUID)
		}
	}
	return fmt.Sprintf("%d %d %v %v %v", len(d.Snapshots()), latest.GUID, held, *g, w.scope.Patterns())
}

// creations asks when snapshots were taken: by dataset and name.
func (w *work) creations(ctx context.Context, s *side, names []string) (map[string]map[string]time.Time, error) {
	out := map[string]map[string]time.Time{}
	if len(names) == 0 {
		return out, nil
	}
	var props map[string]map[string]zfs.Property
	err := s.do(ctx, func(st site.Site) (err error) {
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
