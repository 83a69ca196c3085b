package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/heal"
	"zxfer/pkg/preflight"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

const (
	// damageTimeout limits the queries about a pool's errors, because the run waits for them.
	damageTimeout = 30 * time.Second
	// damageInterval is how often a run asks a target to which it has nothing to send.
	damageInterval = 24 * time.Hour
)

// damageCheck asks the hosts of a job for the errors of its pools, each side once.
type damageCheck struct {
	*jobRun
	copies  []heal.Copy
	answers map[*side]damageAnswer
}

type damageAnswer struct {
	found zfs.Damage
	err   error
}

// earlyDamage holds queries that run during the end of a run. A nil one has none.
type earlyDamage struct {
	cancel  func()
	all     sync.WaitGroup
	answers map[*side]*damageAnswer // complete after all
}

// startDamage asks the source, and the targets that a run sent to, for the errors of their pools. It does
// not wait for the answers. Pools of disks are asked after the scrub.
func (w *jobRun) startDamage(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, damageTimeout)
	w.damage = &earlyDamage{cancel: cancel, answers: map[*side]*damageAnswer{}}
	c := &damageCheck{jobRun: w}
	for i, s := range append([]*side{w.session.Source}, w.session.Targets...) {
		if i > 0 && (w.disk(s) != nil || w.run.Targets[i-1].Sent == 0 || w.run.Targets[i-1].Error != "") {
			continue
		}
		if !w.mayAskDamage(ctx, s) {
			continue
		}
		a := &damageAnswer{}
		w.damage.answers[s] = a
		w.damage.all.Go(func() { a.found, a.err = hosts.Call(ctx, s.Host, hosts.OpDamage, c.root(s).Name) })
	}
}

// of returns the answer of a side. It waits for all answers.
func (e *earlyDamage) of(s *side) (a damageAnswer, asked bool) {
	if e == nil || e.answers[s] == nil {
		return a, false
	}
	e.all.Wait()
	return *e.answers[s], true
}

// stop cancels the queries and waits for their end.
func (e *earlyDamage) stop() {
	if e != nil {
		e.cancel()
		e.all.Wait()
	}
}

// checkDamage records pools of the job with data errors, and whether copies can repair them. It
// skips targets to which the run sent nothing, unless they had errors before or were not asked for
// a day. If a side cannot be asked, it keeps the errors of the previous run.
func (w *jobRun) checkDamage(ctx context.Context) {
	c := &damageCheck{jobRun: w, answers: map[*side]damageAnswer{}}
	c.copies, _ = CopiesOf(w.session.Job) // newRun has parsed the names
	pools := map[string]*statedir.Pool{}
	for i, s := range append([]*side{w.session.Source}, w.session.Targets...) {
		var r *statedir.TargetRun
		if i > 0 {
			r = w.run.Targets[i-1]
		}
		reached := r == nil || r.Error == "" && r.Paused == ""
		if !w.absent(s) && reached && !w.mayAskDamage(ctx, s) {
			w.run.Damaged = append(w.run.Damaged, c.previousDamage(func(d *statedir.Damage) bool { return d.Target == s.TargetName() })...)
			continue
		}
		p := &statedir.Pool{Name: zfs.PoolOf(s.At.Name)}
		if known := w.session.State.Pools[s.TargetName()]; known != nil && known.Name == p.Name {
			p = known
		}
		pools[s.TargetName()] = p
		c.checkSide(ctx, s, p, r)
	}
	w.session.State.Pools = pools
}

// checkSide checks the pool p of a side. r is the result of the run for a target, or nil for the
// source.
func (c *damageCheck) checkSide(ctx context.Context, s *side, p *statedir.Pool, r *statedir.TargetRun) {
	before := c.previousDamage(func(d *statedir.Damage) bool { return d.Target == s.TargetName() })
	var err error
	switch {
	case c.absent(s):
		c.run.Damaged = append(c.run.Damaged, before...)
		return
	case r != nil && r.Error != "":
		err = errNotAsked
	case r != nil && r.Paused != "": // its host may be down on purpose
		c.run.Damaged = append(c.run.Damaged, before...)
		return
	case r != nil && r.Sent+r.Failed == 0 && c.session.State.LastRun != nil && len(before) == 0 && c.run.Started.Sub(p.Asked) < damageInterval:
		return
	default:
		p.Asked = c.run.Started
		err = c.checkPool(ctx, s)
	}
	if err == nil {
		p.Checked, p.Unknown = c.run.Started, ""
		return
	}
	p.Unknown = replicate.Keys(err.Error())
	if fault.ClassOf(err) != fault.Refused { // a restricted key is refused permanently
		c.run.Damaged = append(c.run.Damaged, before...)
	}
}

// mayAskDamage reports whether the key of a side permits the question. If it does not, the administrator of
// that host watches the pool, and nothing is recorded.
func (w *jobRun) mayAskDamage(ctx context.Context, s *side) bool {
	key := w.grantsOf(ctx, s)
	return key == nil || key.Lacks(hosts.OpDamage, w.root(s).Name, s.Target != nil) == ""
}

// errNotAsked is the reason for unknown data errors after a run that failed for another reason, which
// its record has.
var errNotAsked = errors.New("the last run ended before it asked")

// keepDamage keeps the errors of the previous run after a run that did not reach its end.
func (w *jobRun) keepDamage() {
	w.run.Damaged = w.previousDamage(func(*statedir.Damage) bool { return true })
	for _, p := range w.session.State.Pools {
		p.Unknown = errNotAsked.Error()
	}
}

// previousDamage returns the damaged pools in the record of the previous run for which such returns
// true.
func (w *jobRun) previousDamage(such func(*statedir.Damage) bool) []*statedir.Damage {
	if w.session.State.LastRun == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(w.session.State.LastRun.Damaged), func(d *statedir.Damage) bool { return !such(d) })
}

// root returns the dataset of the job on a side.
func (w *jobRun) root(s *side) endpoint.Endpoint {
	e := s.At
	if s.Target != nil {
		e.Name = s.Target.CopyOf(w.session.Source.At.Name, w.session.Source.At.Name)
	}
	return e
}

// ask returns the errors of a side. It asks the host once.
func (c *damageCheck) ask(ctx context.Context, s *side) (zfs.Damage, error) {
	a, asked := c.answers[s]
	if !asked {
		if a, asked = c.damage.of(s); asked {
			c.answers[s] = a
		}
	}
	if !asked {
		a.found, a.err = hosts.Call(ctx, s.Host, hosts.OpDamage, c.root(s).Name)
		if ctx.Err() == nil {
			c.answers[s] = a
		}
	}
	return a.found, a.err
}

// errorsOf returns the errors of the side that contains a dataset.
func (c *damageCheck) errorsOf(ctx context.Context, e endpoint.Endpoint) (zfs.Damage, error) {
	for _, s := range append([]*side{c.session.Source}, c.session.Targets...) {
		root := c.root(s)
		if below, ok := strings.CutPrefix(e.Name, root.Name); ok && root.Host == e.Host && (below == "" || below[0] == '/') {
			return c.ask(ctx, s)
		}
	}
	return zfs.Damage{}, fmt.Errorf("%s does not belong to job %q", e, c.session.Job.Name)
}

// checkPool asks for the data errors of a side's pool, and records them.
func (c *damageCheck) checkPool(ctx context.Context, s *side) error {
	ctx, cancel := context.WithTimeout(ctx, damageTimeout)
	defer cancel()
	found, err := c.ask(ctx, s)
	own := len(found.Objects) + found.More + found.PoolErrors
	if found.Unlisted {
		own = max(1, own)
	}
	pool := sysinfo.Pool{Name: zfs.PoolOf(s.At.Name), Errors: uint64(own + found.Elsewhere)}
	if err == nil && own == 0 && found.Elsewhere > 0 { // the errors do not concern this job
		c.note("pool %s has data errors outside of %s: to list them: %s", pool.Name, c.root(s), s.Host.Command("zpool", "status", "-v", pool.Name))
	}
	if err != nil || own == 0 {
		return err
	}
	facts, _ := s.Host.Facts(ctx) // on error, assume a recent ZFS
	if len(c.session.Targets) > 0 {
		pool.Known = c.root(s).String() // a key may allow healing this dataset but not the pool
	}
	f := preflight.Damaged(&pool, facts.ZFS, c.Env.Flags)
	d := &statedir.Damage{Target: s.TargetName(), Pool: pool.Name, Errors: pool.Errors, Error: f.Summary + " (" + f.Evidence + ")", Hint: s.Host.At().Commands(f.Remedy)}
	c.addRepair(ctx, s, found, d)
	c.run.Damaged = append(c.run.Damaged, d)
	c.Env.Log(c.session.Job.Name + ": " + d.Error + "\n" + d.Hint)
	return nil
}

// addRepair records whether the job's copies can repair the errors of a side.
func (c *damageCheck) addRepair(ctx context.Context, s *side, found zfs.Damage, d *statedir.Damage) {
	if len(c.session.Targets) == 0 {
		return
	}
	defer c.session.Activity("searching copies that can repair %s", s.At)()
	r := heal.RepairOf(ctx, heal.Request{At: c.root(s), Copies: c.copies, Job: c.session.Job.Name, Settings: s.Transfer.Settings}, c.Env.Hosts, found, c.errorsOf)
	d.Repair, d.Copies, d.Why = r.State, r.Copies, replicate.Keys(r.Why)
	switch why := cmp.Or(d.Why, "the reason is unknown"); r.State {
	case heal.RepairFull:
		d.Error += "; a copy can repair them"
		d.Hint = "to repair them from " + strings.Join(r.Copies, ", ") + ": " + c.session.HealCommand()
	case heal.RepairPartial:
		d.Error += "; a copy can repair some of them, but not all: " + why
		d.Hint = "to repair them from " + strings.Join(r.Copies, ", ") + ": " + c.session.HealCommand()
	case heal.RepairNone:
		d.Error += "; no copy can repair them: " + why
	default:
		d.Error += "; unknown whether a copy can repair them: " + why
	}
}
