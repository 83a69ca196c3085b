package runner

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/freeze"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
)

// errNotFrozen reports that no snapshot was taken because an application could not be frozen.
var errNotFrozen = errors.New("no snapshot was taken")

// bisect splits names and keeps the snapshots of each application together. If that is impossible,
// second is empty.
func bisect(names []string, frozen []freeze.Application) (first, second []string) {
	var groups [][]string // the snapshots that one transaction must take together
	for _, name := range names {
		group := []string{name}
		for _, z := range frozen {
			if len(frozenIn(group, []freeze.Application{z})) == 0 {
				continue
			}
			groups = slices.DeleteFunc(groups, func(g []string) bool {
				if len(frozenIn(g, []freeze.Application{z})) == 0 {
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

// frozenIn returns the applications that have any of the snapshots.
func frozenIn(names []string, frozen []freeze.Application) []freeze.Application {
	return slices.DeleteFunc(slices.Clone(frozen), func(z freeze.Application) bool {
		return !slices.ContainsFunc(names, func(full string) bool {
			dataset, _, _ := strings.Cut(full, "@")
			return slices.Contains(z.Datasets, dataset)
		})
	})
}

// snapshotAtOnce takes snapshots in one transaction, with applications frozen. If there are none, it then lists
// with next.
func (w *jobRun) snapshotAtOnce(ctx context.Context, names []string, frozen []freeze.Application, next *relisting) error {
	switch {
	case len(frozen) == 0 && next == nil:
		return hosts.Run(ctx, w.session.Source.Host, hosts.OpSnapshot, names)
	case len(frozen) == 0:
		return next.after(ctx, names)
	}
	r, err := hosts.Call(ctx, w.session.Source.Host, hosts.OpSnapshotFrozen, freeze.Request{Job: w.session.Job.Name, Snapshots: names, Applications: frozen})
	if err != nil {
		return withKeyHint(err)
	}
	var why error
	if r.Stopped {
		names = nil
	}
	for i := range frozen {
		o := r.Outcomes[i]
		w.recordFreeze(&frozen[i], o, names)
		if o.Error != "" && why == nil && (frozen[i].Required || o.ThawFailed) {
			why = fault.Failf(o.Hint, "%s: %s", frozen[i].Label(), o.Error)
		}
	}
	if r.MarkError != "" {
		w.note("cannot set the property %s on the snapshots: %s", freeze.Property, r.MarkError)
	}
	if r.Stopped {
		hint := fault.HintOf(why)
		if hint == "" {
			hint = "check the application on the source host"
		}
		return fault.Refusef(hint+"\nto take the snapshots anyway: on_failure = \"continue\"", "%w: %w", errNotFrozen, why)
	}
	w.freezeErr = errors.Join(w.freezeErr, why)
	return nil
}

// withKeyHint adds a hint to an error of a restricted key, which may never freeze.
func withKeyHint(err error) error {
	if !errors.Is(err, hosts.ErrForbidden) {
		return err
	}
	return &fault.Error{Class: fault.Refused, Err: err,
		Hint: "run the job on that host, so that no restricted key applies"}
}

// deniedFreezes returns why the source forbids freezing, and the freezes that match no dataset.
func (w *jobRun) deniedFreezes(ctx context.Context, unmatched []replicate.UnmatchedFreeze) (all []Denied) {
	deny := func(key string, err error) {
		all = append(all, Denied{Target: replicate.SourceSide, Key: key, Error: err.Error(), Hint: fault.HintOf(err)})
	}
	if len(w.session.Job.Freeze) > 0 { // an empty request freezes nothing
		_, err := hosts.Call(ctx, w.session.Source.Host, hosts.OpSnapshotFrozen, freeze.Request{})
		if errors.Is(err, hosts.ErrForbidden) {
			deny("freeze", withKeyHint(err))
		}
	}
	for i := range unmatched {
		deny("freeze "+strconv.Quote(unmatched[i].Label()), fault.Failf(datasetsHint, "%s", unmatched[i].Error))
	}
	return all
}

const datasetsHint = "list the application's datasets in the key datasets of [[job.freeze]], and include them in the job"

// recordUnmatched records unmatched freezes as failed. It returns an error if one of them is required.
func (w *jobRun) recordUnmatched(unmatched []replicate.UnmatchedFreeze, names []string) error {
	required := slices.IndexFunc(unmatched, func(z replicate.UnmatchedFreeze) bool { return z.Required })
	if required >= 0 {
		names = nil
	}
	for i := range unmatched {
		w.recordFreeze(&unmatched[i].Application, freeze.Outcome{Error: unmatched[i].Error, Hint: datasetsHint}, names)
	}
	if required < 0 {
		return nil
	}
	z := &unmatched[required]
	return fault.Refusef(datasetsHint+"\nto take the snapshots anyway: on_failure = \"continue\"", "%w: %s: %s", errNotFrozen, z.Label(), z.Error)
}

// recordFreeze records the outcome of one freeze, for the run and for each dataset.
func (w *jobRun) recordFreeze(z *freeze.Application, o freeze.Outcome, names []string) {
	w.run.Frozen = append(w.run.Frozen, statedir.Frozen{Name: z.Label(), Kind: z.Kind, Datasets: len(z.Datasets), Outcome: o})
	if o.Error != "" {
		w.note("not consistent: %s: %s", z.Label(), o.Error)
	}
	for _, full := range names {
		dataset, snapshot, _ := strings.Cut(full, "@")
		if slices.Contains(z.Datasets, dataset) {
			w.session.State.Dataset(dataset).RecordFreeze(snapshot, o.Error == "")
		}
	}
}
