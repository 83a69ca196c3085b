package hosts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"zxfer/pkg/freeze"
	"zxfer/pkg/freeze/guard"
)

// SnapshotFrozen has a watchdog of its own hold what is wanted still.
func (l *Local) SnapshotFrozen(ctx context.Context, q freeze.Request) (r freeze.Result, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	g, err := guard.Start(ctx, l.tools.RunDirectory(), &q)
	if err != nil {
		return r, err
	}
	elsewhere := l.elsewhere(ctx, q, g.Places)
	for i, where := range elsewhere {
		g.Stopped = g.Stopped || where != "" && q.Wanted[i].Required
	}
	if g.Stopped {
		r.Stopped, r.Outcomes = true, g.Drop()
		for i := range r.Outcomes { // that nothing was taken is not why
			if o := &r.Outcomes[i]; !o.Left {
				o.Error, o.Hint = g.Outcomes[i].Error, g.Outcomes[i].Hint
			}
			elsewhere.tell(i, &r.Outcomes[i])
		}
		return r, nil
	}
	if err = l.Snapshot(ctx, q.Snapshots); err != nil {
		if more := left(q, g.Drop()); len(more) > 0 {
			err = errors.Join(append([]error{err}, more...)...)
		}
		return r, err
	}
	r.Outcomes = g.Take()
	for i := range r.Outcomes {
		elsewhere.tell(i, &r.Outcomes[i])
	}
	// What is there is to be marked also where the run is told to end.
	ctx = context.WithoutCancel(ctx)
	marks := freeze.Marks(q, r.Outcomes)
	for _, value := range slices.Sorted(maps.Keys(marks)) {
		if err := l.direct.Mark(ctx, freeze.Property, value, marks[value]); err != nil && r.Unmarked == "" {
			r.Unmarked = freeze.Clean(err.Error())
		}
	}
	return r, nil
}

// left are the failures to have applications go on.
func left(q freeze.Request, outcomes []freeze.Outcome) (errs []error) {
	for i, o := range outcomes {
		if o.Left {
			errs = append(errs, fmt.Errorf("%s may still be frozen: %s", q.Wanted[i].Label(), o.Error))
		}
	}
	return errs
}

// elsewhereMarks tells of each application what of its data the snapshots do not have; "" =
// nothing that is known.
type elsewhereMarks []string

func (s elsewhereMarks) tell(i int, o *freeze.Outcome) {
	if o.Error == "" && s[i] != "" {
		o.Error, o.Hint = s[i], "name all datasets of it in datasets; they have to be part of the job"
	}
}

// elsewhere looks where applications have their data. What is not to be seen here, as in
// a container, or is on no ZFS, as on a disk of a volume, tells nothing.
func (l *Local) elsewhere(ctx context.Context, q freeze.Request, places [][]string) elsewhereMarks {
	out := make(elsewhereMarks, len(q.Wanted))
	known := map[uint64]string{} // by device: applications wait for the answers
	for i, w := range q.Wanted {
		if w.Host != "" && !strings.HasPrefix(w.Host, "/") {
			continue // it may be another host's
		}
		for _, place := range places[i] {
			var at syscall.Stat_t
			if syscall.Stat(place, &at) != nil {
				continue
			}
			dataset, told := known[at.Dev]
			if !told {
				real, err := filepath.EvalSymlinks(place)
				if err != nil {
					continue
				}
				dataset, _ = l.DatasetOf(ctx, real) // "" where it is on no ZFS
				known[at.Dev] = dataset
			}
			if dataset != "" && !slices.Contains(w.Datasets, dataset) {
				out[i] = freeze.Clean(fmt.Sprintf("its data in %s is on %s, of which no snapshot is taken with it", place, dataset))
			}
		}
	}
	return out
}
