package send

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/zfs"
)

// makePlan plans from state and looks up the additional facts that the plan needs. removeRefused,
// if not nil, is called after each check. It must remove datasets with conflicts from the plan.
func makePlan(ctx context.Context, e *ends.Ends, req plan.Request, state *plan.State, removeRefused func(*plan.Plan)) (plan.Plan, error) {
	if removeRefused == nil {
		removeRefused = func(*plan.Plan) {}
	}
	state.SameHost = e.SameMachine()
	p := plan.Make(req, *state)
	more, err := lookUpHistories(ctx, e, &p, state)
	if err != nil {
		return p, err
	}
	if more {
		p = plan.Make(req, *state)
	}
	risks := map[string]plan.BlockRisk{}
	if err := compareBlockSizes(ctx, e, &p, risks); err != nil {
		return p, err
	}
	plan.CheckBlockSizes(&p, req, *state, risks)
	for _, name := range plan.NeedDescendants(&p, req) {
		l, err := e.Target.Conn.List(ctx, hosts.ListQuery{Dataset: name, Recursive: true, Versions: true, NoAncestors: true})
		if err != nil {
			return p, err
		}
		state.Descendants = append(state.Descendants, l.Datasets...)
	}
	if plan.Rotate(&p, req, state) {
		p = plan.Make(req, *state)
		if err := compareBlockSizes(ctx, e, &p, risks); err != nil {
			return p, err
		}
		plan.CheckBlockSizes(&p, req, *state, risks)
	}
	removeRefused(&p)
	for _, check := range []func(context.Context, *ends.Ends, *plan.Plan, *plan.State) error{checkIVSets, lookUpZPLVersions, checkLosses} {
		if len(p.Conflicts) > 0 {
			break
		}
		if err := check(ctx, e, &p, state); err != nil {
			return p, err
		}
		removeRefused(&p)
	}
	return p, nil
}

// lookUpHistories lists the complete histories of the target datasets for which the plan needs
// them. It reports whether there are any.
func lookUpHistories(ctx context.Context, e *ends.Ends, p *plan.Plan, state *plan.State) (bool, error) {
	datasets, names := plan.NeedHistories(*p, *state)
	if len(names) > 0 {
		taken, err := e.Target.Conn.Properties(ctx, names, []string{"guid"})
		if err != nil {
			return false, err
		}
		for name := range taken {
			dataset, _, _ := strings.Cut(name, "@")
			datasets = append(datasets, dataset)
		}
	}
	if len(datasets) == 0 {
		return false, nil
	}
	return true, listHistories(ctx, e, &state.Target, datasets)
}

// listHistories replaces datasets of a target listing with listings of all versions.
func listHistories(ctx context.Context, e *ends.Ends, l *zfs.Listing, datasets []string) error {
	if len(datasets) == 0 {
		return nil
	}
	slices.Sort(datasets)
	whole, err := e.Target.Conn.List(ctx, hosts.ListQuery{Dataset: l.Root, Only: slices.Compact(datasets), Versions: true, NoAncestors: true})
	known := whole.ByName()
	for i, d := range l.Datasets {
		if w := known[d.Name]; w != nil {
			if changed, asked := d.Properties[zfs.ChangedProperty]; asked {
				w.Properties[zfs.ChangedProperty] = changed // as of the first listing
			}
			l.Datasets[i] = w
		}
	}
	return err
}

// checkIVSets looks up the IV sets that raw incremental sends depend on.
func checkIVSets(ctx context.Context, e *ends.Ends, p *plan.Plan, state *plan.State) error {
	source, target := plan.NeedIVSets(*p)
	if len(source) == 0 {
		return nil
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		state.SourceIVSets, err = ivSets(gctx, &e.Source, source)
		return err
	})
	g.Go(func() (err error) {
		state.TargetIVSets, err = ivSets(gctx, &e.Target, target)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	plan.CheckIVSets(p, *state)
	return nil
}

// ivSets returns the IV set GUIDs of versions by their GUID.
func ivSets(ctx context.Context, h *ends.End, versions []string) (map[uint64]string, error) {
	m, err := h.Conn.Properties(ctx, versions, []string{"guid", "ivsetguid"})
	if err != nil {
		return nil, err
	}
	out := make(map[uint64]string, len(m))
	for name, props := range m {
		guid, err := zfs.ParseGUID(props["guid"].Value)
		if err != nil {
			return nil, fmt.Errorf("%s: guid of %s: %w", h.Conn.Label(), name, err)
		}
		if iv := props["ivsetguid"].Value; iv != "-" && iv != "" {
			out[guid] = iv
		}
	}
	return out, nil
}

// lookUpZPLVersions looks up the filesystem versions that a preflight check needs.
func lookUpZPLVersions(ctx context.Context, e *ends.Ends, p *plan.Plan, state *plan.State) error {
	names := preflight.NeedZPL(p, &state.Source)
	if len(names) == 0 {
		return nil
	}
	found, err := e.Source.Conn.Properties(ctx, names, []string{"version"})
	state.Source = withProperties(state.Source, found)
	return err
}

// checkLosses looks up holds and clones that prevent a rollback of the target.
func checkLosses(ctx context.Context, e *ends.Ends, p *plan.Plan, state *plan.State) error {
	names := plan.NeedLosses(*p)
	if len(names) == 0 {
		return nil
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		state.TargetHolds, err = e.Target.Conn.Holds(gctx, names)
		return err
	})
	g.Go(func() error {
		found, err := e.Target.Conn.Properties(gctx, names, []string{"clones"})
		state.TargetClones = map[string][]string{}
		for name, of := range found {
			if list := of["clones"].Value; list != "" && list != "-" {
				state.TargetClones[name] = strings.Split(list, ",")
			}
		}
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	plan.CheckLosses(p, *state)
	return nil
}

// Preview plans a send like a dry run, without its checks. A plan with conflicts has no sizes. It returns the state
// also with an error.
func Preview(ctx context.Context, req *Request, e *ends.Ends, log func(string)) (state plan.State, p plan.Plan, err error) {
	if err = e.Reach(ctx); err != nil {
		return state, p, err
	}
	if err = e.Choose(req.Settings, log); err != nil {
		return state, p, err
	}
	if err = Resolve(ctx, e, req, log); err != nil {
		return state, p, err
	}
	if state, err = Survey(ctx, e, req.Plan, false); err != nil {
		return state, p, err
	}
	if p, err = makePlan(ctx, e, req.Plan, &state, nil); err != nil || len(p.Conflicts) > 0 {
		return state, p, err
	}
	return state, p, estimate(ctx, &e.Source, &p, &state.Source, false)
}
