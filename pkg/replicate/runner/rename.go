package runner

import (
	"context"

	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// planRenames finds out, on each of targets with on_rename = "follow", what becomes of copies whose source
// dataset was renamed. It fills v.Renames and changes nothing. Without such copies it asks no host.
func planRenames(ctx context.Context, p *pass, v *decision.Survey, targets []*session.Side) {
	v.Renames = map[string]*decision.Renames{}
	for _, t := range targets {
		if !t.Target.FollowsRenames() || !v.OutdatedNames(t.Target) {
			continue // the state keeps the former name until a run that reaches the copy
		}
		l, err := t.List(ctx, hosts.ListQuery{Dataset: v.RenameList(t.Target), Recursive: true, Versions: true})
		if err != nil {
			p.journal.Note("%s: cannot list the copies of renamed datasets: %v", t.Name, err)
			continue
		}
		v.Renames[t.Name] = v.PlanRenames(t.Target, &l)
	}
}

// followRenames renames copies like their source datasets. A run that is killed after a rename, and
// before the state is saved, leaves a copy with the new name: the next run finds and records it. An
// error is noted, and the datasets are refused as renamed. permit is called before anything changes.
func followRenames(ctx context.Context, p *pass, v *decision.Survey, targets []*session.Side, permit func() error) error {
	planRenames(ctx, p, v, targets)
	if len(v.Renames) == 0 {
		return nil
	}
	if err := permit(); err != nil {
		return err
	}
	for _, t := range targets {
		r := v.Renames[t.Name]
		if r == nil {
			continue
		}
		done := 0
		for _, step := range r.Steps {
			if err := rename(ctx, t, step); err != nil {
				p.journal.Note("%s: cannot rename the copy of a renamed dataset: %v", t.Name, err)
				break
			}
			p.journal.Log("%s on %s was renamed to %s, like its source", step.Dataset, t.Name, step.As)
			done++
		}
		if err := p.ledger.Expect(func(st *statedir.State) { r.Record(&st.State, t.Name, done) }); err != nil {
			p.journal.Note("%s: cannot record the new names of copies: %v", t.Name, err)
		}
	}
	return nil
}

func rename(ctx context.Context, s *session.Side, step decision.RenameStep) error {
	if step.CreateParents {
		if err := hosts.Run(ctx, s, hosts.OpCreateParents, step.As); err != nil {
			return err
		}
	}
	return hosts.Run(ctx, s, hosts.OpRenameCopies, []zfs.RenamedCopy{step.RenamedCopy})
}

// renamesAt returns the renames on a target that precede a batch.
func renamesAt(v *decision.Survey, target string) (all []zfs.RenamedCopy) {
	if r := v.Renames[target]; r != nil {
		for _, step := range r.Steps {
			all = append(all, step.RenamedCopy)
		}
	}
	return all
}
