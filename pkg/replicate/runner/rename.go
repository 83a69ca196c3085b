package runner

import (
	"context"
	"fmt"

	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// planRenames finds out, on each target with on_rename = "follow", what becomes of copies whose source
// dataset was renamed. It fills v.Renames and changes nothing. Without such copies it asks no host.
func (w *jobRun) planRenames(ctx context.Context, v *replicate.Survey) {
	v.Renames = map[string]*replicate.Renames{}
	for _, t := range w.session.Targets {
		if !t.Target.FollowsRenames() || !v.OutdatedNames(t.Target) || w.heldBatch(t) != nil || w.withoutDisk(t) != nil {
			continue // the state keeps the former name until a run that reaches the copy
		}
		l, err := t.List(ctx, hosts.ListQuery{Dataset: v.RenameList(t.Target), Recursive: true, Versions: true})
		if err != nil {
			w.note("%s: cannot list the copies of renamed datasets: %v", t.Name, err)
			continue
		}
		v.Renames[t.Name] = v.PlanRenames(t.Target, &l)
	}
}

// followRenames renames copies like their source datasets. A run that is killed after a rename, and
// before the state is saved, leaves a copy with the new name: the next run finds and records it. An
// error is noted, and the datasets are refused as renamed.
func (w *jobRun) followRenames(ctx context.Context, v *replicate.Survey) {
	w.planRenames(ctx, v)
	for _, t := range w.session.Targets {
		r := v.Renames[t.Name]
		if r == nil {
			continue
		}
		done := 0
		for _, step := range r.Steps {
			if err := rename(ctx, t, step); err != nil {
				w.note("%s: cannot rename the copy of a renamed dataset: %v", t.Name, err)
				break
			}
			w.Env.Log(fmt.Sprintf("%s: %s on %s was renamed to %s, like its source", w.session.Job.Name, step.Dataset, t.Name, step.As))
			done++
		}
		w.session.State.RecordRenames(t.Name, r, done)
		if err := w.session.Store.Save(w.session.State); err != nil {
			w.note("%s: cannot record the new names of copies: %v", t.Name, err)
		}
	}
}

func rename(ctx context.Context, s *side, step replicate.RenameStep) error {
	if step.CreateParents {
		if err := hosts.Run(ctx, s, hosts.OpCreateParents, step.As); err != nil {
			return err
		}
	}
	return hosts.Run(ctx, s, hosts.OpRenameCopies, []zfs.RenamedCopy{step.RenamedCopy})
}

// renamesAt returns the renames on a target that precede a batch.
func renamesAt(v *replicate.Survey, target string) (all []zfs.RenamedCopy) {
	if r := v.Renames[target]; r != nil {
		for _, step := range r.Steps {
			all = append(all, step.RenamedCopy)
		}
	}
	return all
}
