package job

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

// makePlan plans and, where raw increments depend on it, looks up IV sets.
func (s *sender) makePlan(ctx context.Context, req plan.Request, state *plan.State) (plan.Plan, error) {
	p := plan.Make(req, *state)
	more, err := s.histories(ctx, &p, state)
	if err != nil {
		return p, err
	}
	if more {
		p = plan.Make(req, *state)
	}
	if err := s.checkChains(ctx, &p, state); err != nil {
		return p, err
	}
	if err := s.formats(ctx, &p, state); err != nil {
		return p, err
	}
	return p, s.checkLosses(ctx, &p, state)
}

// formats looks up the versions of filesystems that a check asks for.
func (s *sender) formats(ctx context.Context, p *plan.Plan, state *plan.State) error {
	names := preflight.NeedZPL(p, &state.Source)
	if len(p.Conflicts) > 0 || len(names) == 0 {
		return nil
	}
	found, err := s.source.Properties(ctx, names, []string{"version"})
	for _, d := range state.Source.Datasets {
		if v, ok := found[d.Name]["version"]; ok {
			d.Properties["version"] = v
		}
	}
	return err
}

// histories lists the target's datasets whose whole history a plan needs, and
// returns whether there are any.
func (s *sender) histories(ctx context.Context, p *plan.Plan, state *plan.State) (bool, error) {
	datasets, names := plan.NeedHistories(*p, *state)
	if len(names) > 0 {
		taken, err := s.target.Properties(ctx, names, []string{"guid"})
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
	slices.Sort(datasets)
	whole, err := s.target.List(ctx, site.ListQuery{
		Dataset: state.Target.Root, Only: slices.Compact(datasets), Versions: true, Alone: true,
	})
	if err != nil {
		return false, err
	}
	for i, d := range state.Target.Datasets {
		if w := whole.Find(d.Name); w != nil {
			state.Target.Datasets[i] = w
		}
	}
	return true, nil
}

// checkChains looks up the IV sets that raw increments depend on.
func (s *sender) checkChains(ctx context.Context, p *plan.Plan, state *plan.State) error {
	source, target := plan.NeedIVSets(*p)
	if len(p.Conflicts) > 0 || len(source) == 0 {
		return nil
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		state.SourceIVSets, err = ivSets(gctx, s.source, source)
		return err
	})
	g.Go(func() (err error) {
		state.TargetIVSets, err = ivSets(gctx, s.target, target)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	plan.CheckIVSets(p, *state)
	return nil
}

// checkLosses looks up what would keep ZFS from rolling the target back.
func (s *sender) checkLosses(ctx context.Context, p *plan.Plan, state *plan.State) error {
	names := plan.NeedLosses(*p)
	if len(p.Conflicts) > 0 || len(names) == 0 {
		return nil
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		state.TargetHolds, err = s.target.Holds(gctx, names)
		return err
	})
	g.Go(func() error {
		found, err := s.target.Properties(gctx, names, []string{"clones"})
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

// ivSets returns the IV set GUIDs of versions, by the version's GUID.
func ivSets(ctx context.Context, e *hosts.Host, versions []string) (map[uint64]string, error) {
	m, err := e.Properties(ctx, versions, []string{"guid", "ivsetguid"})
	if err != nil {
		return nil, err
	}
	out := make(map[uint64]string, len(m))
	for name, props := range m {
		guid, err := zfs.ParseGUID(props["guid"].Value)
		if err != nil {
			return nil, fmt.Errorf("%s: guid of %s: %w", e.Label(), name, err)
		}
		if iv := props["ivsetguid"].Value; iv != "-" && iv != "" {
			out[guid] = iv
		}
	}
	return out, nil
}
