package runner

import (
	"context"
	"strings"
	"time"

	"zxfer/pkg/replicate"
)

// decide returns the decision for the state v. It queries snapshot dates that retention needs and
// no listing holds.
func (w *jobRun) decide(ctx context.Context, v *replicate.RunState) *replicate.Decision {
	w.checkLeftCopies(ctx, v)
	v.Now = w.Now()
	d := replicate.Decide(v)
	if len(d.Ask) > 0 {
		v.Created, v.QueryErrors = map[string]map[string]map[string]time.Time{}, map[string]error{}
		for name, snapshots := range d.Ask {
			v.Created[name], v.QueryErrors[name] = w.created(ctx, name, snapshots)
		}
		d = replicate.Decide(v)
	}
	for _, p := range d.Prunings {
		if p.Refused && p.Mirror {
			p.Hint = "look what became of the source; what would go: " + w.command("prune -n "+w.job.Name) +
				"\nto remove it, once: " + w.command("prune --beyond-limit "+w.job.Name)
		} else if p.Refused {
			p.Hint = "the job's retention or adopt was changed, or something is wrong; look: " + w.command("prune -n "+w.job.Name) +
				"\nto remove them, once: " + w.command("prune --beyond-limit "+w.job.Name)
		}
	}
	return d
}

// created returns the creation times of snapshots by dataset and name. For snapshots that a
// preview expects to arrive, it queries the source.
func (w *jobRun) created(ctx context.Context, side string, snapshots []string) (map[string]map[string]time.Time, error) {
	var existing, coming []string
	for _, n := range snapshots {
		if of := w.expected[side][n]; of != "" {
			coming = append(coming, of)
		} else {
			existing = append(existing, n)
		}
	}
	out, err := w.side(side).created(ctx, existing)
	if err != nil || len(coming) == 0 {
		return out, err
	}
	at, err := w.source.created(ctx, coming)
	for name, of := range w.expected[side] {
		dataset, snapshot, _ := strings.Cut(of, "@")
		if created, ok := at[dataset][snapshot]; ok {
			dataset, snapshot, _ = strings.Cut(name, "@")
			if out[dataset] == nil {
				out[dataset] = map[string]time.Time{}
			}
			out[dataset][snapshot] = created
		}
	}
	return out, err
}
