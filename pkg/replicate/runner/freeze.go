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
func (w *jobRun) snapshotAtOnce(ctx context.Context, names []string, frozen []freeze.Wanted) error {
	if len(frozen) == 0 {
		return w.source.host.Do(ctx, func(st hosts.Host) error { return st.Snapshot(ctx, names) })
	}
	q := freeze.Request{Job: w.job.Name, Snapshots: names, Wanted: frozen}
	r, err := hosts.Call(ctx, w.source.host.Do, hosts.Freezer.SnapshotFrozen, q)
	if err != nil {
		return notByKey(err)
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

// notByKey says what to do where a restricted key freezes nothing.
func notByKey(err error) error {
	if !errors.Is(err, hosts.ErrForbidden) {
		return err
	}
	return &fault.Error{Class: fault.Refused, Err: err,
		Hint: "have the job run on that host, and send from it: there no key is in the way"}
}

// deniedFreezing asks the source whether anything may be frozen there, and looks whether
// all that is to be is there.
func (w *jobRun) deniedFreezing(ctx context.Context, astray []replicate.UnmatchedFreeze) (all []Denied) {
	deny := func(key string, err error) {
		all = append(all, Denied{Target: replicate.SourceSide, Key: key, Error: err.Error(), Hint: fault.HintOf(err)})
	}
	if len(w.job.Freeze) > 0 { // of nothing, which no host does
		_, err := hosts.Call(ctx, w.source.host.Do, hosts.Freezer.SnapshotFrozen, freeze.Request{})
		if errors.Is(err, hosts.ErrForbidden) {
			deny("freeze", notByKey(err))
		}
	}
	for i := range astray {
		deny("freeze "+strconv.Quote(astray[i].Label()), fault.Failf(mendDatasets, "%s", astray[i].Error))
	}
	return all
}

const mendDatasets = "write into datasets of [[job.freeze]] what is the application's, and look whether include, exclude and property leave it in the job"

// strayed has what cannot be frozen as it is written fail as any freeze does.
func (w *jobRun) strayed(astray []replicate.UnmatchedFreeze, names []string) error {
	required := slices.IndexFunc(astray, func(z replicate.UnmatchedFreeze) bool { return z.Required })
	if required >= 0 {
		names = nil
	}
	for i := range astray {
		w.froze(&astray[i].Wanted, freeze.Outcome{Error: astray[i].Error, Hint: mendDatasets}, names)
	}
	if required < 0 {
		return nil
	}
	z := &astray[required]
	return fault.Refusef(mendDatasets+"\non_failure = \"continue\" takes them all the same", "%w: %s: %s", errNotFrozen, z.Label(), z.Error)
}

// froze notes what came of one, in the record and of each dataset.
func (w *jobRun) froze(z *freeze.Wanted, o freeze.Outcome, names []string) {
	w.run.Frozen = append(w.run.Frozen, statedir.Frozen{Name: z.Label(), Kind: z.Kind, Datasets: len(z.Datasets), Outcome: o})
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
