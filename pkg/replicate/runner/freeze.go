package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/freeze"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/session"
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

// takeFrozen takes snapshots in one transaction, with applications frozen.
func (t *taking) takeFrozen(ctx context.Context, names []string, frozen []freeze.Application) error {
	r, err := hosts.Call(ctx, t.p.s.Source.Host, hosts.OpSnapshotFrozen, freeze.Request{Job: t.p.s.Job.Name, Snapshots: names, Applications: frozen})
	if errors.Is(err, hosts.ErrLost) {
		return t.frozenUnknown(ctx, names, frozen, err)
	}
	if err != nil {
		return withKeyHint(err)
	}
	var why error
	if r.Stopped {
		names = nil
	}
	for i := range frozen {
		o := r.Outcomes[i]
		t.recordFreeze(&frozen[i], o, names)
		if o.Error != "" && why == nil && (frozen[i].Required || o.ThawFailed) {
			why = fault.Failf(o.Hint, "%s: %s", frozen[i].Label(), o.Error)
		}
	}
	if r.MarkError != "" {
		t.p.journal.Note("cannot set the property %s on the snapshots: %s", freeze.Property, r.MarkError)
	}
	if r.Stopped {
		hint := fault.HintOf(why)
		if hint == "" {
			hint = "check the application on the source host"
		}
		return fault.Refusef(hint+"\nto take the snapshots anyway: on_failure = \"continue\"", "%w: %w", errNotFrozen, why)
	}
	t.out.unfrozen = errors.Join(t.out.unfrozen, why)
	return nil
}

// frozenUnknown returns the result of takeFrozen after the connection was lost. The host may have taken the
// snapshots, and thawed the applications before it did. If no snapshot exists, it returns lost.
func (t *taking) frozenUnknown(ctx context.Context, names []string, frozen []freeze.Application, lost error) error {
	missing, err := t.missing(ctx, names)
	if err != nil || len(missing) == len(names) {
		return lost
	}
	for i := range frozen {
		o := freeze.Outcome{Error: fmt.Sprintf("it is unknown whether it was frozen: %v", lost)}
		t.recordFreeze(&frozen[i], o, names)
		if frozen[i].Required {
			t.out.unfrozen = errors.Join(t.out.unfrozen, fmt.Errorf("%s: %s", frozen[i].Label(), o.Error))
		}
	}
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
func deniedFreezes(ctx context.Context, s *session.Session, unmatched []decision.UnmatchedFreeze) (all []Denied) {
	deny := func(key string, err error) {
		all = append(all, Denied{Target: replicate.SourceSide, Key: key, Error: err.Error(), Hint: fault.HintOf(err)})
	}
	if len(s.Job.Freeze) > 0 { // an empty request freezes nothing
		_, err := hosts.Call(ctx, s.Source.Host, hosts.OpSnapshotFrozen, freeze.Request{})
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
func (t *taking) recordUnmatched(unmatched []decision.UnmatchedFreeze, names []string) error {
	required := slices.IndexFunc(unmatched, func(z decision.UnmatchedFreeze) bool { return z.Required })
	if required >= 0 {
		names = nil
	}
	for i := range unmatched {
		t.recordFreeze(&unmatched[i].Application, freeze.Outcome{Error: unmatched[i].Error, Hint: datasetsHint}, names)
	}
	if required < 0 {
		return nil
	}
	z := &unmatched[required]
	return fault.Refusef(datasetsHint+"\nto take the snapshots anyway: on_failure = \"continue\"", "%w: %s: %s", errNotFrozen, z.Label(), z.Error)
}

// recordFreeze records the outcome of one freeze, for the run and for each dataset.
func (t *taking) recordFreeze(z *freeze.Application, o freeze.Outcome, names []string) {
	t.out.frozen = append(t.out.frozen, statedir.Frozen{Name: z.Label(), Kind: z.Kind, Datasets: len(z.Datasets), Outcome: o})
	if o.Error != "" {
		t.p.journal.Note("not consistent: %s: %s", z.Label(), o.Error)
	}
	t.p.ledger.Confirm(func(st *statedir.State) {
		for _, full := range names {
			dataset, snapshot, _ := strings.Cut(full, "@")
			if slices.Contains(z.Datasets, dataset) {
				st.Dataset(dataset).RecordFreeze(snapshot, o.Error == "")
			}
		}
	})
}
