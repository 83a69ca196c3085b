package runner

import (
	"context"
	"slices"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/preflight"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

// damageTimeout limits the query for a pool's errors, because the run waits for it.
const damageTimeout = 30 * time.Second

// checkDamage records pools of the job with data errors. It skips targets to which the run sent
// nothing, unless they had errors before. If a side cannot be queried, it keeps the errors of the
// previous run.
func (w *jobRun) checkDamage(ctx context.Context) {
	for i, s := range append([]*side{w.source}, w.targets...) {
		before := w.previousDamage(func(d *statedir.Damage) bool { return d.Target == s.targetName() })
		asked := true
		if i > 0 {
			r := w.run.Targets[i-1]
			asked = r.Error == "" && (r.Sent+r.Failed > 0 || w.state.LastRun == nil || len(before) > 0)
		}
		if !asked || w.checkPool(ctx, s) != nil {
			w.run.Damaged = append(w.run.Damaged, before...)
		}
	}
}

// previousDamage returns the damaged pools in the record of the previous run for which such returns
// true.
func (w *jobRun) previousDamage(such func(*statedir.Damage) bool) []*statedir.Damage {
	if w.state.LastRun == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(w.state.LastRun.Damaged), func(d *statedir.Damage) bool { return !such(d) })
}

// checkPool queries the data errors of a side's pool. If the host refuses, for example to a
// restricted key, it records nothing.
func (w *jobRun) checkPool(ctx context.Context, s *side) error {
	ctx, cancel := context.WithTimeout(ctx, damageTimeout)
	defer cancel()
	found, err := hosts.Call(ctx, s.host, hosts.OpDamage, s.at.Name)
	if fault.ClassOf(err) == fault.Refused {
		return nil
	}
	own := len(found.Objects) + found.More + found.PoolErrors
	if found.Unlisted {
		own = max(1, own)
	}
	pool := sysinfo.Pool{Name: zfs.PoolOf(s.at.Name), Errors: uint64(own + found.Elsewhere)}
	if err == nil && own == 0 && found.Elsewhere > 0 { // the errors do not concern this job
		w.note("pool %s has data errors outside of %s: to list them there: %s", pool.Name, s.at, zfs.CommandLine([]string{"zpool", "status", "-v", pool.Name}))
	}
	if err != nil || own == 0 {
		return err
	}
	facts, _ := s.host.Facts(ctx) // on error, assume a recent ZFS
	if len(w.targets) > 0 {
		pool.Known = s.at.String() // a key may allow healing this dataset but not the pool
	}
	f := preflight.Damaged(&pool, facts.ZFS, w.Flags)
	d := &statedir.Damage{Target: s.targetName(), Pool: pool.Name, Errors: pool.Errors, Error: f.Summary + " (" + f.Evidence + ")", Hint: f.Remedy}
	w.run.Damaged = append(w.run.Damaged, d)
	w.Log(w.job.Name + ": " + d.Error + "\n" + d.Hint)
	return nil
}
