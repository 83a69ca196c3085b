package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/damage"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/disk"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// Run runs a job once and appends its record to the log. It returns the record even with an error.
// If the job is already running, Run waits or, unless wait is set, fails with statedir.ErrRunning
// (fault.Refused). If the job is paused, a scheduled run does nothing, and a manual one is refused.
func (r *Runner) Run(ctx context.Context, j *replicate.Job, wait bool) (*statedir.Run, error) {
	ping := r.pinger(j)
	l, err := r.lock(ctx, j, wait)
	if err != nil {
		r.notifyEnd(ctx, j, ping, nil, err)
		return nil, err
	}
	defer l.unlock()
	if rec := l.skipped; rec != nil {
		r.notifyEnd(ctx, j, ping, rec, nil)
		if err := l.store.Append(rec); err != nil {
			return rec, fmt.Errorf("job %q: cannot store its record: %w", j.Name, err)
		}
		return rec, nil
	}
	if ping != nil {
		ping.Start(ctx)
	}
	p := r.newPass(l.session, order{pause: l.pause})
	rec, err := complete(ctx, p)
	amend(p.s, rec, func() { r.notifyEnd(ctx, j, ping, rec, err) })
	return rec, err
}

// complete runs a locked job once, with its hooks, and records the run.
func complete(ctx context.Context, p *pass) (*statedir.Run, error) {
	err := hooksBefore(ctx, p)
	if err == nil {
		err = work(ctx, p)
	} else {
		recordDamage(p, damage.Keep(p.s))
	}
	err = conclude(ctx, p, err)
	amend(p.s, p.rec, func() { hooksAfter(ctx, p) })
	return p.rec, p.rec.Err(err)
}

// work does what is between the hooks. Its error concerns the whole run.
func work(ctx context.Context, p *pass) error {
	held := withheld(p, nil)
	defer connectHosts(ctx, p.s, held)()
	ready, err := prepare(ctx, p, held)
	if turned, is := err.(*turnError); is { // nothing has changed yet
		if err = p.turn(turned.to); err == nil {
			held = withheld(p, nil)
			ready, err = prepare(ctx, p, held)
		}
	}
	disks := attachDisks(ctx, p, held) // after the snapshots, which do not wait for a silent host
	var asked *damage.Check
	if err == nil {
		asked, err = deliver(ctx, p, held, ready, disks)
	}
	if ready.survey != nil {
		ready.survey.Forget()
	}
	scrubDisks(ctx, p, disks)
	if err == nil && ctx.Err() == nil {
		absent := func(t *session.Side) bool { d := disks.Of(t); return d != nil && !d.Usable() }
		recordDamage(p, asked.Finish(ctx, p.rec, absent))
	} else {
		recordDamage(p, damage.Keep(p.s))
	}
	asked.Stop()
	detachDisks(ctx, p, disks)
	return err
}

// prepared is the source after its snapshots were taken.
type prepared struct {
	source session.Role
	survey *decision.Survey         // nil if the source could not be listed
	cache  *statedir.UnchangedCache // of earlier runs
	taken  snapshots
}

// prepare observes the source and takes the due snapshots. They wait for no target, unless the last run failed
// as a whole, for example because a copy became the source: each further run would leave a snapshot.
func prepare(ctx context.Context, p *pass, held map[string]string) (*prepared, error) {
	ready := &prepared{cache: p.s.Store.UnchangedCache(p.s.Job)}
	began, role := time.Now(), readRoles(ctx, p.s, p.s.Source)
	defer role.stop()
	copies := func() *roles { // of the targets, except disks: their copies cannot become the source
		onDisks := func(t *session.Side) bool { return t.Target.Disk != nil }
		return readRoles(ctx, p.s, slices.DeleteFunc(reachable(p.s, held), onDisks)...)
	}
	v, err := observeSource(ctx, p, held, ready.cache)
	if err != nil { // the source may be missing because a copy is the source
		targets := copies()
		defer targets.stop()
		judged := judgeRoles(ctx, p.s, role.wait()[p.s.Source], targets)
		if _, turns := judged.(*turnError); turns || judged != nil && fault.ClassOf(judged) == fault.Refused {
			return ready, judged
		}
		return ready, err
	}
	if time.Since(began) > maxRoleAge {
		role = readRoles(ctx, p.s, p.s.Source)
		defer role.stop()
	}
	ready.survey, p.rec.Datasets = v, len(v.Source.Datasets)+len(v.Unchanged)
	ready.source = role.wait()[p.s.Source]
	err = judgeRoles(ctx, p.s, ready.source, nil)
	if last := p.s.State.LastRun; err != nil || suspect(p.s, ready.source) || last != nil && last.Error != "" {
		targets := copies()
		defer targets.stop()
		err = judgeRoles(ctx, p.s, ready.source, targets)
	}
	if err == nil {
		err = v.CheckTaking()
	}
	if err != nil {
		return ready, err
	}
	ready.survey, ready.taken = takeSnapshots(ctx, p, v)
	p.rec.Snapshots, p.rec.Frozen = ready.taken.count, ready.taken.frozen
	if errors.Is(ready.taken.err, errNotFrozen) && ready.taken.count == 0 {
		return ready, ready.taken.err
	}
	return ready, nil
}

// deliver sends to the targets, and carries out what the run decides afterwards. A failure to take some
// snapshots does not stop it.
func deliver(ctx context.Context, p *pass, held map[string]string, ready *prepared, disks *disk.Set) (asked *damage.Check, err error) {
	roles := readRoles(ctx, p.s, usable(disks, reachable(p.s, held))...)
	defer roles.stop()
	permit := func() error {
		err := judgeRoles(ctx, p.s, ready.source, roles)
		if ready.taken.count > 0 {
			err = ends.Changed(err)
		}
		return err
	}
	v, err := recheckUnchanged(ctx, p.s, ready.survey, ready.cache)
	if err != nil {
		return nil, err
	}
	ready.survey = v
	p.ledger.Confirm(func(st *statedir.State) { st.Switch = "" })
	v.Promoted = ready.source.Role.Kind == zfs.RoleSource // the listing may lack an unchanged root
	if err := confirm(ctx, p.s, v, p.journal.Note); err != nil {
		return nil, err
	}
	held = withheld(p, held) // a window may have closed
	if err := followRenames(ctx, p, v, usable(disks, reachable(p.s, held)), permit); err != nil {
		return nil, err
	}
	batches := sendAll(ctx, p, v, disks, held, permit)
	if err := permit(); err != nil { // then no batch has changed anything
		return nil, err
	}
	after := recordBatches(ctx, p, v, batches, ready.taken.missed)
	asked = askDamage(ctx, p, disks)
	d := decider{s: p.s, v: after, note: p.journal.Note}
	made := d.decide(ctx)
	failed := apply(ctx, p, made, batches)
	if len(p.s.Targets) == 0 {
		v.EndLocal(ready.taken.missed, cmp.Or(failed, ctx.Err()))
	}
	if ctx.Err() == nil && ready.taken.err == nil {
		ready.cache.Datasets = decision.CacheUnchanged(after, made.Prunings, ready.cache.Datasets)
		if err := p.s.Store.SaveUnchangedCache(ready.cache); err != nil {
			p.journal.Note("cannot store the list of unchanged datasets: %v", err)
		}
	}
	return asked, errors.Join(ready.taken.err, failed, ready.taken.unfrozen)
}
