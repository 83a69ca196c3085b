// Package damage asks the hosts of a job for the data errors of its pools, and whether copies can repair them.
package damage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

const (
	// timeout limits the queries about a pool's errors, because the run waits for them.
	timeout = 30 * time.Second
	// interval is how often a run asks a target to which it has nothing to send.
	interval = 24 * time.Hour
)

// Result is the part of the record of a run that describes the pools of its job.
type Result struct {
	Damaged []*statedir.Damage
	Pools   map[string]*statedir.Pool // by target name, "" = the source
	Notes   []string
}

// Check asks the sides of a job for the errors of their pools, each side once.
type Check struct {
	session *session.Session
	copies  []heal.Copy
	// early holds the queries of Start. They are complete when running has no members.
	early   map[*session.Side]*answer
	running sync.WaitGroup
	cancel  context.CancelFunc

	ran     *statedir.Run
	answers map[*session.Side]answer
	result  Result
}

type answer struct {
	found zfs.Damage
	err   error
}

// Start asks the given sides. It does not wait for the answers. The caller calls Stop.
func Start(ctx context.Context, s *session.Session, sides []*session.Side) *Check {
	c := &Check{session: s, early: map[*session.Side]*answer{}, answers: map[*session.Side]answer{}}
	ctx, c.cancel = context.WithTimeout(ctx, timeout)
	for _, side := range sides {
		if !mayAsk(ctx, s, side) {
			continue
		}
		a := &answer{}
		c.early[side] = a
		c.running.Go(func() { a.found, a.err = hosts.Call(ctx, side.Host, hosts.OpDamage, s.Root(side).Name) })
	}
	return c
}

// Stop cancels the queries and waits for their end. A nil Check has no queries.
func (c *Check) Stop() {
	if c != nil {
		c.cancel()
		c.running.Wait()
	}
}

// Finish finds the pools of the job with data errors, and whether copies can repair them, after the run ran. It
// skips targets to which the run sent nothing, unless they had errors before or were not asked for
// a day, and those for which absent returns true. If a side cannot be asked, it keeps the errors of the
// previous run.
func (c *Check) Finish(ctx context.Context, ran *statedir.Run, absent func(*session.Side) bool) Result {
	s := c.session
	c.ran, c.result = ran, Result{Pools: map[string]*statedir.Pool{}}
	c.copies, _ = s.Copies() // the session has parsed the names
	for i, side := range append([]*session.Side{s.Source}, s.Targets...) {
		var r *statedir.TargetRun
		if i > 0 {
			r = ran.Targets[i-1]
		}
		reached := r == nil || r.Error == "" && r.Paused == ""
		if !absent(side) && reached && !mayAsk(ctx, s, side) {
			c.keep(side)
			continue
		}
		p := &statedir.Pool{Name: zfs.PoolOf(side.At.Name)}
		if known := s.State.Pools[side.TargetName()]; known != nil && known.Name == p.Name {
			*p = *known
		}
		c.result.Pools[side.TargetName()] = p
		if absent(side) {
			c.keep(side)
		} else {
			c.side(ctx, side, p, r)
		}
	}
	return c.result
}

// Keep returns the errors of the previous run, for a run that did not reach its end.
func Keep(s *session.Session) Result {
	r := Result{Pools: maps.Clone(s.State.Pools)}
	if s.State.LastRun != nil {
		r.Damaged = s.State.LastRun.Damaged
	}
	for name, p := range r.Pools {
		unknown := *p
		unknown.Unknown = errNotAsked.Error()
		r.Pools[name] = &unknown
	}
	return r
}

// errNotAsked is the reason for unknown data errors after a run that failed for another reason, which
// its record has.
var errNotAsked = errors.New("the last run ended before it asked")

// side checks the pool p of a side. r is the result of the run for a target, or nil for the
// source.
func (c *Check) side(ctx context.Context, s *session.Side, p *statedir.Pool, r *statedir.TargetRun) {
	var err error
	switch {
	case r != nil && r.Error != "":
		err = errNotAsked
	case r != nil && r.Paused != "": // its host may be down on purpose
		c.keep(s)
		return
	case r != nil && r.Sent+r.Failed == 0 && c.session.State.LastRun != nil && len(c.previous(s)) == 0 && c.ran.Started.Sub(p.Asked) < interval:
		return
	default:
		p.Asked = c.ran.Started
		err = c.pool(ctx, s)
	}
	if err == nil {
		p.Checked, p.Unknown = c.ran.Started, ""
		return
	}
	p.Unknown = replicate.Keys(err.Error())
	if fault.ClassOf(err) != fault.Refused { // a restricted key is refused permanently
		c.keep(s)
	}
}

// mayAsk reports whether the key of a side permits the question. If it does not, the administrator of
// that host watches the pool, and nothing is recorded.
func mayAsk(ctx context.Context, s *session.Session, side *session.Side) bool {
	key := side.Grants(ctx)
	return key == nil || key.Lacks(hosts.OpDamage, s.Root(side).Name, side.Target != nil) == ""
}

// keep keeps the errors of a side in the record of the previous run.
func (c *Check) keep(s *session.Side) { c.result.Damaged = append(c.result.Damaged, c.previous(s)...) }

// previous returns the errors of a side in the record of the previous run.
func (c *Check) previous(s *session.Side) []*statedir.Damage {
	if c.session.State.LastRun == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.session.State.LastRun.Damaged), func(d *statedir.Damage) bool { return d.Target != s.TargetName() })
}

// ask returns the errors of a side. It asks the host once.
func (c *Check) ask(ctx context.Context, s *session.Side) (zfs.Damage, error) {
	a, asked := c.answers[s]
	if early := c.early[s]; !asked && early != nil {
		c.running.Wait()
		a, asked = *early, true
		c.answers[s] = a
	}
	if !asked {
		a.found, a.err = hosts.Call(ctx, s.Host, hosts.OpDamage, c.session.Root(s).Name)
		if ctx.Err() == nil {
			c.answers[s] = a
		}
	}
	return a.found, a.err
}

// errorsOf returns the errors of the side that contains a dataset.
func (c *Check) errorsOf(ctx context.Context, e endpoint.Endpoint) (zfs.Damage, error) {
	for _, s := range append([]*session.Side{c.session.Source}, c.session.Targets...) {
		root := c.session.Root(s)
		if below, ok := strings.CutPrefix(e.Name, root.Name); ok && root.Host == e.Host && (below == "" || below[0] == '/') {
			return c.ask(ctx, s)
		}
	}
	return zfs.Damage{}, fmt.Errorf("%s does not belong to job %q", e, c.session.Job.Name)
}

// pool asks for the data errors of a side's pool, and records them.
func (c *Check) pool(ctx context.Context, s *session.Side) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	found, err := c.ask(ctx, s)
	own := len(found.Objects) + found.More + found.PoolErrors
	if found.Unlisted {
		own = max(1, own)
	}
	pool := sysinfo.Pool{Name: zfs.PoolOf(s.At.Name), Errors: uint64(own + found.Elsewhere)}
	if err == nil && own == 0 && found.Elsewhere > 0 { // the errors do not concern this job
		c.note("pool %s has data errors outside of %s: to list them: %s", pool.Name, c.session.Root(s), s.Host.Command("zpool", "status", "-v", pool.Name))
	}
	if err != nil || own == 0 {
		return err
	}
	facts, _ := s.Host.Facts(ctx) // on error, assume a recent ZFS
	if len(c.session.Targets) > 0 {
		pool.Known = c.session.Root(s).String() // a key may allow healing this dataset but not the pool
	}
	f := preflight.Damaged(&pool, facts.ZFS, c.session.Env.Flags)
	d := &statedir.Damage{Target: s.TargetName(), Pool: pool.Name, Errors: pool.Errors, Error: f.Summary + " (" + f.Evidence + ")", Hint: s.Host.At().Commands(f.Remedy)}
	c.addRepair(ctx, s, found, d)
	c.result.Damaged = append(c.result.Damaged, d)
	c.session.Env.Log(c.session.Job.Name + ": " + d.Error + "\n" + d.Hint)
	return nil
}

// addRepair records whether the job's copies can repair the errors of a side.
func (c *Check) addRepair(ctx context.Context, s *session.Side, found zfs.Damage, d *statedir.Damage) {
	if len(c.session.Targets) == 0 {
		return
	}
	defer c.session.Activity("searching copies that can repair %s", s.At)()
	r := heal.RepairOf(ctx, heal.Request{At: c.session.Root(s), Copies: c.copies, Job: c.session.Job.Name, Settings: s.Transfer.Settings}, c.session.Env.Hosts, found, c.errorsOf)
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

// note records and logs a problem that does not make the run fail.
func (c *Check) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	c.result.Notes = append(c.result.Notes, text)
	c.session.Env.Log(c.session.Job.Name + ": " + text)
}
