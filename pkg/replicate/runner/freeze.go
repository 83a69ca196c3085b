package runner

import (
	"context"
	"errors"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/freeze"
	"zxfer/pkg/replicate/record"
	"zxfer/pkg/site"
)

// errNotFrozen tells that no snapshot was taken, as an application could not be held
// still.
var errNotFrozen = errors.New("no snapshot was taken")

// halves divides names so that the snapshots of no application come apart; there is no
// second where they cannot be.
func halves(names []string, frozen []freeze.Wanted) (first, second []string) {
	var groups [][]string // what one transaction has to take, if any is
	for _, name := range names {
		group := []string{name}
		for _, z := range frozen {
			if len(of(group, []freeze.Wanted{z})) == 0 {
				continue
			}
			groups = slices.DeleteFunc(groups, func(g []string) bool {
				if len(of(g, []freeze.Wanted{z})) == 0 {
					return false
				}
				group = append(g, group...)
				return true
			})
		}
		groups = append(groups, group)
	}
	half := (len(groups) + 1) / 2
	return slices.Concat(groups[:half]...), slices.Concat(groups[half:]...)
}

// of are the applications that have any of the snapshots.
func of(names []string, frozen []freeze.Wanted) []freeze.Wanted {
	return slices.DeleteFunc(slices.Clone(frozen), func(z freeze.Wanted) bool {
		return !slices.ContainsFunc(names, func(full string) bool {
			dataset, _, _ := strings.Cut(full, "@")
			return slices.Contains(z.Datasets, dataset)
		})
	})
}

// snapshotAtOnce takes snapshots in one transaction while applications stand still.
func (w *work) snapshotAtOnce(ctx context.Context, names []string, frozen []freeze.Wanted) error {
	if len(frozen) == 0 {
		return w.source.host.Do(ctx, func(st site.Site) error { return st.Snapshot(ctx, names) })
	}
	q := freeze.Request{Job: w.job.Name, Snapshots: names, Wanted: frozen}
	r, err := site.Ask(ctx, w.source.host.Do, site.Freezer.SnapshotFrozen, q)
	if errors.Is(err, site.ErrForbidden) {
		err = &fault.Error{Class: fault.Refused, Err: err,
			Hint: "a restricted key runs no program there: have the job run on that host, and send from it"}
	}
	if err != nil {
		return err
	}
	var why error
	if r.Stopped {
		names = nil
	}
	for i := range frozen {
		o := r.Outcomes[i]
		w.froze(&frozen[i], o, names)
		if o.Error != "" && why == nil && (frozen[i].Required || o.Left) {
			why = fault.Failf(o.Hint, "%s: %s", frozen[i].Label(), o.Error)
		}
	}
	if r.Unmarked != "" {
		w.note("the property %s could not be set on the snapshots: %s", freeze.Property, r.Unmarked)
	}
	if r.Stopped {
		hint := fault.HintOf(why)
		if hint == "" {
			hint = "look at it on the host of the source"
		}
		return fault.Refusef(hint+"\non_failure = \"continue\" takes them all the same", "%w: %w", errNotFrozen, why)
	}
	w.unproved = errors.Join(w.unproved, why)
	return nil
}

// froze notes what came of one, in the record and of each dataset.
func (w *work) froze(z *freeze.Wanted, o freeze.Outcome, names []string) {
	w.run.Frozen = append(w.run.Frozen, record.Frozen{Name: z.Label(), Kind: z.Kind, Datasets: len(z.Datasets), Outcome: o})
	if o.Error != "" {
		w.note("not consistent: %s: %s", z.Label(), o.Error)
	}
	for _, full := range names {
		dataset, snapshot, _ := strings.Cut(full, "@")
		if slices.Contains(z.Datasets, dataset) {
			w.state.Dataset(dataset).Froze(snapshot, o.Error == "")
		}
	}
}
