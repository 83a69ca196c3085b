package runner

import (
	"context"
	"slices"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/preflight"
	"zxfer/pkg/replicate/record"
	"zxfer/pkg/site"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

// damageWithin bounds how long a pool is asked for its errors: a run waits for it.
const damageWithin = 30 * time.Second

// lookForDamage notes which pools of the job have data errors. Targets that the run had
// nothing for are not reached for it: of these counts what was known before.
func (w *work) lookForDamage(ctx context.Context) {
	w.damage(ctx, w.source)
	for i, t := range w.targets {
		if r := w.run.Targets[i]; r.Error == "" && (r.Sent+r.Failed > 0 || w.state.LastRun == nil) {
			w.damage(ctx, t)
			continue
		}
		w.run.Damaged = append(w.run.Damaged, w.damagedBefore(func(d *record.Damage) bool { return d.Target == t.name })...)
	}
}

// damagedBefore are such pools that the run before knew of.
func (w *work) damagedBefore(such func(*record.Damage) bool) []*record.Damage {
	if w.state.LastRun == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(w.state.LastRun.Damaged), func(d *record.Damage) bool { return !such(d) })
}

// damage asks for the errors of a side's pool. A host that does not tell, as by a
// restricted key, says nothing of it.
func (w *work) damage(ctx context.Context, s *side) {
	ctx, cancel := context.WithTimeout(ctx, damageWithin)
	defer cancel()
	var found zfs.Damage
	err := s.host.Do(ctx, site.In(func(st site.Healer) (err error) { found, err = st.Damage(ctx, s.at.Name); return err }))
	n := len(found.Things) + found.More + found.Elsewhere
	if found.Unlisted {
		n = max(1, n)
	}
	if err != nil || n == 0 {
		return
	}
	facts, _ := s.host.Facts(ctx) // without them it is new enough
	pool := sysinfo.Pool{Name: zfs.PoolOf(s.at.Name), Errors: uint64(n)}
	if len(w.targets) > 0 {
		pool.Known = endpoint.Endpoint{Host: s.at.Host, Name: pool.Name}.String()
	}
	f := preflight.Damaged(&pool, facts.ZFS, w.Flags)
	d := &record.Damage{Pool: pool.Name, Errors: pool.Errors, Error: f.Summary + " (" + f.Evidence + ")", Hint: f.Remedy}
	if s.target != nil {
		d.Target = s.name
	}
	same := func(o *record.Damage) bool { return o.Error == d.Error && o.Hint == d.Hint } // of one pool
	if !slices.ContainsFunc(w.run.Damaged, same) {
		w.run.Damaged = append(w.run.Damaged, d)
		w.Log(w.job.Name + ": " + d.Error + "\n" + d.Hint)
	}
}
