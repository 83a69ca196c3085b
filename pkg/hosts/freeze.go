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

// SnapshotFrozen starts a watchdog process that freezes the applications, then takes the snapshots.
func (l *Local) SnapshotFrozen(ctx context.Context, q freeze.Request) (r freeze.Result, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	g, err := guard.Start(ctx, l.tools.RunDirectory(), &q)
	if err != nil {
		return r, err
	}
	missing := l.findUnsnapshotted(ctx, q, g.DataDirs)
	for i, where := range missing {
		g.Stopped = g.Stopped || where != "" && q.Applications[i].Required
	}
	if g.Stopped {
		r.Stopped, r.Outcomes = true, g.Cancel()
		for i := range r.Outcomes { // "no snapshot was taken" is not the cause
			if o := &r.Outcomes[i]; !o.ThawFailed {
				o.Error, o.Hint = g.Outcomes[i].Error, g.Outcomes[i].Hint
			}
			missing.annotate(i, &r.Outcomes[i])
		}
		return r, nil
	}
	if err = l.Snapshot(ctx, q.Snapshots); err != nil {
		if more := thawErrors(q, g.Cancel()); len(more) > 0 {
			err = errors.Join(append([]error{err}, more...)...)
		}
		return r, err
	}
	r.Outcomes = g.Finish()
	for i := range r.Outcomes {
		missing.annotate(i, &r.Outcomes[i])
	}
	// Mark existing snapshots even if the run is interrupted.
	ctx = context.WithoutCancel(ctx)
	marks := freeze.Marks(q, r.Outcomes)
	for _, value := range slices.Sorted(maps.Keys(marks)) {
		if err := l.direct.Mark(ctx, freeze.Property, value, marks[value]); err != nil && r.MarkError == "" {
			r.MarkError = freeze.Clean(err.Error())
		}
	}
	return r, nil
}

// thawErrors returns an error for each application that may still be frozen.
func thawErrors(q freeze.Request, outcomes []freeze.Outcome) (errs []error) {
	for i, o := range outcomes {
		if o.ThawFailed {
			errs = append(errs, fmt.Errorf("%s may still be frozen: %s", q.Applications[i].Label(), o.Error))
		}
	}
	return errs
}

// unsnapshotted holds for each application which of its data the snapshots lack, or "" if that is
// nothing or unknown.
type unsnapshotted []string

func (s unsnapshotted) annotate(i int, o *freeze.Outcome) {
	if o.Error == "" && s[i] != "" {
		o.Error, o.Hint = s[i], "list all its datasets in the key datasets; the job must include them"
	}
}

// findUnsnapshotted looks up the datasets that hold the applications' data. It ignores data that
// this host cannot see, such as in a container, and data that is not on ZFS.
func (l *Local) findUnsnapshotted(ctx context.Context, q freeze.Request, places [][]string) unsnapshotted {
	out := make(unsnapshotted, len(q.Applications))
	known := map[uint64]string{} // by device: the frozen applications wait for the result
	for i, w := range q.Applications {
		if w.Host != "" && !strings.HasPrefix(w.Host, "/") {
			continue // it may be on another host
		}
		for _, place := range places[i] {
			var at syscall.Stat_t
			if syscall.Stat(place, &at) != nil {
				continue
			}
			dataset, cached := known[at.Dev]
			if !cached {
				real, err := filepath.EvalSymlinks(place)
				if err != nil {
					continue
				}
				dataset, _ = l.DatasetOf(ctx, real) // "" if it is not on ZFS
				known[at.Dev] = dataset
			}
			if dataset != "" && !slices.Contains(w.Datasets, dataset) {
				out[i] = freeze.Clean(fmt.Sprintf("its data in %s is on %s, which is not part of the snapshot", place, dataset))
			}
		}
	}
	return out
}
