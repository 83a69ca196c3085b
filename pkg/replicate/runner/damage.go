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

// damageWithin bounds how long a pool is asked for its errors: a run waits for it.
const damageWithin = 30 * time.Second

// lookForDamage notes which pools of the job have data errors. Targets that the run had
// nothing for are not reached for it, but where they had some; of a side that cannot be
// asked counts what was known before.
func (w *jobRun) lookForDamage(ctx context.Context) {
	for i, s := range append([]*side{w.source}, w.targets...) {
		before := w.damagedBefore(func(d *statedir.Damage) bool { return d.Target == s.targetName() })
		asked := true
		if i > 0 {
			r := w.run.Targets[i-1]
			asked = r.Error == "" && (r.Sent+r.Failed > 0 || w.state.LastRun == nil || len(before) > 0)
		}
		if !asked || w.damage(ctx, s) != nil {
			w.run.Damaged = append(w.run.Damaged, before...)
		}
	}
}

// damagedBefore are such pools that the run before knew of.
func (w *jobRun) damagedBefore(such func(*statedir.Damage) bool) []*statedir.Damage {
	if w.state.LastRun == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(w.state.LastRun.Damaged), func(d *statedir.Damage) bool { return !such(d) })
}

// damage asks for the errors of a side's pool. A host that does not tell, as by a
// restricted key, says nothing of it.
func (w *jobRun) damage(ctx context.Context, s *side) error {
	ctx, cancel := context.WithTimeout(ctx, damageWithin)
	defer cancel()
	found, err := hosts.Call(ctx, s.host.Do, hosts.Healer.Damage, s.at.Name)
	if fault.ClassOf(err) == fault.Refused {
		return nil
	}
	own := len(found.Things) + found.More + found.OfPool
	if found.Unlisted {
		own = max(1, own)
	}
	pool := sysinfo.Pool{Name: zfs.PoolOf(s.at.Name), Errors: uint64(own + found.Elsewhere)}
	if err == nil && own == 0 && found.Elsewhere > 0 { // which is nothing of this job
		w.note("pool %s has data errors outside of %s: there, %s", pool.Name, s.at, zfs.CommandLine([]string{"zpool", "status", "-v", pool.Name}))
	}
	if err != nil || own == 0 {
		return err
	}
	facts, _ := s.host.Facts(ctx) // without them it is new enough
	if len(w.targets) > 0 {
		pool.Known = s.at.String() // a key may be allowed to heal that, and not the pool
	}
	f := preflight.Damaged(&pool, facts.ZFS, w.Flags)
	d := &statedir.Damage{Target: s.targetName(), Pool: pool.Name, Errors: pool.Errors, Error: f.Summary + " (" + f.Evidence + ")", Hint: f.Remedy}
	w.run.Damaged = append(w.run.Damaged, d)
	w.Log(w.job.Name + ": " + d.Error + "\n" + d.Hint)
	return nil
}
