package send

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// Survey lists both sides concurrently: all versions of the source, and the most recent snapshots
// of the target, which suffice for most plans. With newest, it lists all versions only of those
// source datasets for which the plan needs them, if the source is a tree on the local host: ZFS
// takes several lookups for each snapshot. For a remote source, that would cost a round trip.
func Survey(ctx context.Context, e *ends.Ends, req plan.Request, newest bool) (plan.State, error) {
	state := plan.State{SourceHost: e.Source.Conn.Label(), TargetHost: e.Target.Conn.Label(), SourceAt: e.Source.Conn.At(), TargetAt: e.Target.Conn.At()}
	target, err := plan.TargetName(req.Source, req.Target)
	if err != nil {
		return state, err
	}
	newest = newest && req.Recursive && e.Source.Conn.Local() && plan.NewestSuffices(&req)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		state.Source, err = e.Source.Conn.List(gctx, hosts.ListQuery{Dataset: req.Source, Recursive: req.Recursive, Versions: !newest, Newest: newest})
		name := req.Source
		if req.Snapshot != "" {
			name += "@" + req.Snapshot
		}
		err = ends.MissingPool(e.Source.Conn, name, err)
		if err == nil && req.Carries().All {
			state.Source, err = localProperties(gctx, &e.Source, state.Source)
		}
		return err
	})
	g.Go(func() (err error) {
		state.Target, err = e.Target.Conn.List(gctx, hosts.ListQuery{Dataset: target, Recursive: req.Recursive, Newest: true})
		return ends.MissingPool(e.Target.Conn, target, err)
	})
	if err := g.Wait(); err != nil {
		return state, err
	}
	if len(state.Source.Datasets) == 0 {
		return state, ends.NoDataset(&e.Source, req.Source)
	}
	if newest {
		if err := sourceHistories(ctx, e, req, &state); err != nil {
			return state, err
		}
	}
	return state, surveySource(ctx, e, req, &state)
}

// sourceHistories lists the versions of the source datasets whose history the plan needs. A dataset
// that was recreated since the first listing keeps only its most recent snapshot.
func sourceHistories(ctx context.Context, e *ends.Ends, req plan.Request, state *plan.State) error {
	names := plan.NeedSourceHistories(req, *state)
	if len(names) == 0 {
		return nil
	}
	q := hosts.ListQuery{Dataset: req.Source, Versions: true, Identity: true, NoAncestors: true}
	if q.Recursive = len(names) == len(state.Source.Datasets); !q.Recursive {
		q.Only = names
	}
	whole, err := e.Source.Conn.List(ctx, q)
	known := state.Source.ByName()
	for _, w := range whole.Datasets {
		if d := known[w.Name]; d != nil && w.GUID == d.GUID {
			d.Versions, d.NewestOnly = w.Versions, false
		}
	}
	return err
}

// surveySource queries other facts that the plan needs from the source.
func surveySource(ctx context.Context, e *ends.Ends, req plan.Request, state *plan.State) (err error) {
	if names := plan.NeedCreated(req, state); len(names) > 0 {
		if state.SourceCreated, err = e.Source.Conn.Created(ctx, names); err != nil {
			return err
		}
	}
	return surveyOrigins(ctx, e, req, state)
}

// surveyOrigins looks up the origins of clones outside the listings: their GUIDs on the source,
// and whether the target has them.
func surveyOrigins(ctx context.Context, e *ends.Ends, req plan.Request, state *plan.State) error {
	source, target := plan.NeedOrigins(req, *state)
	if len(source) == 0 {
		return nil
	}
	guids := func(h *ends.End, names []string) (map[string]uint64, error) {
		m, err := h.Conn.Properties(ctx, names, []string{"guid"})
		if err != nil {
			return nil, err
		}
		out := make(map[string]uint64, len(m))
		for name, props := range m {
			if out[name], err = zfs.ParseGUID(props["guid"].Value); err != nil {
				return nil, fmt.Errorf("%s: guid of %s: %w", h.Conn.Label(), name, err)
			}
		}
		return out, nil
	}
	var err error
	if state.SourceOrigins, err = guids(&e.Source, source); err != nil {
		return err
	}
	state.TargetOrigins, err = guids(&e.Target, target)
	return err
}

// localProperties returns a copy of the listing with all locally set properties, which the
// planner carries over.
func localProperties(ctx context.Context, source *ends.End, l zfs.Listing) (zfs.Listing, error) {
	var names []string
	for _, d := range l.Datasets {
		names = append(names, d.Name)
	}
	m, err := source.Conn.Properties(ctx, names, nil)
	if err != nil {
		return l, err
	}
	return withProperties(l, m), nil
}

// withProperties returns a copy of a listing with more properties. A batch shares its listing.
func withProperties(l zfs.Listing, more map[string]map[string]zfs.Property) zfs.Listing {
	l.Datasets = slices.Clone(l.Datasets)
	for i, d := range l.Datasets {
		if len(more[d.Name]) > 0 {
			c := *d
			c.Properties = maps.Clone(d.Properties)
			maps.Copy(c.Properties, more[d.Name])
			l.Datasets[i] = &c
		}
	}
	return l
}

// Resolve replaces a source that is a mounted path with its dataset, unless it was replaced before.
func Resolve(ctx context.Context, e *ends.Ends, req *Request, log func(string)) (err error) {
	if req.Plan.Source == req.Source.Name {
		req.Plan.Source, err = e.Source.Resolve(ctx, req.Source, log)
	}
	return err
}
