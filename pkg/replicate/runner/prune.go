package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/disk"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// Prune applies the retention of a job without a transfer. With dryRun it only reports what it
// would destroy. Otherwise it refuses a job whose runs or transfers are paused. With beyond, the
// limit of one run does not apply. Otherwise, if any side exceeds the limit, Prune destroys nothing.
func (r *Runner) Prune(ctx context.Context, j *replicate.Job, dryRun, beyond bool) ([]*decision.Pruning, error) {
	if p, err := statedir.Paused(r.Env.StateDir, j.Name, r.Env.Now()); !dryRun && (err != nil || p.State(r.Env.Now()).Active()) {
		if err == nil {
			err = p.Refusal(j.Name, r.Env.ResumeCommand(j, p), "", session.Stamp)
		}
		return nil, err
	}
	store, unlock, err := r.Env.LockStore(ctx, j, false, "wait until it ends")
	if err != nil {
		return nil, err
	}
	defer unlock()
	s, err := r.Env.Open(j, store)
	if err != nil {
		return nil, err
	}
	disks := disk.Find(ctx, s, r.Env.Now().UTC().Truncate(time.Second), &sync.Mutex{}) // first: a command on a suspended pool would hang
	if s, _, err = checkRoles(ctx, s, usable(disks, s.Targets)); err != nil {
		return nil, err
	}
	p := r.newPass(s, order{})
	found, err := survey(ctx, s, p.rec.Started)
	if err != nil {
		return nil, err
	}
	v := &decision.RunState{Survey: found, NoLimit: beyond}
	var errs []error
	for _, t := range s.Targets {
		b := withoutDisk(disks, t)
		if b != nil {
			p.journal.Log("%s", disks.Of(t).Skipped())
		} else if b = listCopies(ctx, s, t, v.Survey.Root); b.err != nil {
			errs = append(errs, fmt.Errorf("target %s: %w", t.Name, b.err))
		}
		v.Targets = append(v.Targets, b.targetState())
	}
	d := decider{s: s, v: v, note: p.journal.Note}
	all := d.decide(ctx).Prunings
	refused := slices.ContainsFunc(all, func(p *decision.Pruning) bool { return p.Refused })
	for _, of := range all {
		switch {
		case dryRun:
			showHeld(ctx, s, of, nil, nil)
		case refused:
			of.Record(&s.State.State)
		default:
			prune(ctx, p, of, nil)
		}
		if err := of.Failed(); err != nil && of.Refused {
			errs = append(errs, err)
		} else if err != nil {
			errs = append([]error{err}, errs...) // the first error determines the class
		}
	}
	if !dryRun {
		errs = append(errs, s.Store.Save(s.State))
	}
	return all, statedir.UsageToFailed(errors.Join(errs...))
}

// listCopies returns a batch that only lists the target.
func listCopies(ctx context.Context, s *session.Session, t *session.Side, root string) *batch {
	b := &batch{to: t, result: &send.BatchResult{}}
	q := hosts.ListQuery{Recursive: s.Job.Recursive, Versions: true}
	if q.Dataset, b.err = plan.TargetName(root, t.At.Name); b.err == nil {
		defer s.Activity("listing %s", t.At)()
		b.result.Target, b.err = t.List(ctx, q)
	}
	return b
}

// prune records what retention learned about a side, and carries out its decision. first destroyed the first
// snapshots; nil = none did. It returns how many snapshots were destroyed.
func prune(ctx context.Context, p *pass, of *decision.Pruning, first *step) int {
	p.ledger.Confirm(func(st *statedir.State) { of.Record(&st.State) })
	began, due := time.Now(), len(of.Remove)
	if first != nil && first.ran {
		began = first.began
	}
	defer p.s.Activity("destroying %s on %s", english.Plural(due, "snapshot", ""), of.Side)()
	destroyed := destroyRemoved(ctx, p.s.Side(of.Side), of, first)
	of.Removed = destroyOrphans(ctx, p, of)
	if due > 0 && !of.Refused {
		p.journal.Log("%s destroyed %s on %s in %s", of.Rule(), english.Plural(destroyed, "snapshot", ""), of.Side, time.Since(began).Round(time.Millisecond))
	}
	return destroyed
}

// showHeld moves the snapshots that are held or have clones from of.Remove to the kept ones, for
// display. Destroying does not need it, since ZFS then names busy snapshots faster. Snapshots in
// coming do not exist yet. freed counts the job's own holds that will have moved.
func showHeld(ctx context.Context, s *session.Session, of *decision.Pruning, coming map[string]string, freed map[string]uint64) {
	existing := slices.DeleteFunc(slices.Clone(of.Remove), func(n string) bool { return coming[n] != "" })
	if len(existing) == 0 {
		return
	}
	defer s.Activity("listing holds on %s", of.Side)()
	props, err := s.Side(of.Side).Properties(ctx, existing, "userrefs", "clones")
	if err != nil {
		of.Error = err.Error()
		return
	}
	of.Remove = slices.DeleteFunc(of.Remove, func(n string) bool {
		if coming[n] != "" {
			return false
		}
		found := props[n]
		refs, _ := strconv.ParseUint(found["userrefs"].Value, 10, 64) // always a number for an existing snapshot
		held := refs > freed[n] || strings.Trim(found["clones"].Value, "-") != ""
		if held {
			of.Keep(n)
		}
		return held || found == nil
	})
}

// destroyAtOnce is the number of snapshots that one transaction destroys. It must fit into a
// transaction group together with other activity of the pool. Other sizes were not faster per
// snapshot.
const destroyAtOnce = 1000

// destroyRemoved destroys p.Remove and returns how many snapshots were destroyed. first destroyed the first ones;
// nil = none did.
func destroyRemoved(ctx context.Context, s *session.Side, p *decision.Pruning, first *step) int {
	if p.Error != "" {
		return 0
	}
	var destroyed []string
	for some := range slices.Chunk(p.Remove, destroyAtOnce) {
		var err error
		if first != nil {
			err = first.result(ctx)
		} else {
			err = hosts.Run(ctx, s, hosts.OpDestroy, some)
		}
		first = nil
		done, err := settle(ctx, s, some, err, p)
		destroyed = append(destroyed, done...)
		if err != nil {
			p.Error = err.Error()
			break
		}
	}
	if len(p.Remove) > 0 {
		p.Remove = destroyed
	}
	if p.Error == "" {
		p.Complete()
	}
	return len(destroyed)
}

// destroySnapshots destroys names in one transaction and returns those that were destroyed.
func destroySnapshots(ctx context.Context, s *session.Side, names []string, p *decision.Pruning) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	return settle(ctx, s, names, hosts.Run(ctx, s, hosts.OpDestroy, names), p)
}

// settle returns which names were destroyed by one transaction that ended with err. A snapshot that is
// held, has clones or is being sent fails the whole transaction: settle keeps it and destroys the others.
// If ZFS does not name it, settle bisects.
func settle(ctx context.Context, s *session.Side, names []string, err error, p *decision.Pruning) ([]string, error) {
	if err == nil {
		return names, nil
	}
	if !errors.Is(err, &zfs.Error{Kind: zfs.Busy}) {
		return nil, err
	}
	busy := busyOf(err)
	rest := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return busy[n] })
	if len(rest) < len(names) {
		for _, n := range names {
			if busy[n] {
				p.Keep(n)
			}
		}
		return destroySnapshots(ctx, s, rest, p)
	}
	if len(names) == 1 {
		p.Keep(names[0])
		return nil, nil
	}
	a, err := destroySnapshots(ctx, s, names[:len(names)/2], p)
	if err != nil {
		return a, err
	}
	b, err := destroySnapshots(ctx, s, names[len(names)/2:], p)
	return slices.Concat(a, b), err
}

// busyOf returns the subjects of all errors of kind Busy in an error tree.
func busyOf(err error) map[string]bool {
	out := map[string]bool{}
	var walk func(error)
	walk = func(err error) {
		if e, ok := err.(*zfs.Error); ok && e.Kind == zfs.Busy {
			out[e.Subject] = true
		}
		switch u := err.(type) {
		case interface{ Unwrap() error }:
			if inner := u.Unwrap(); inner != nil {
				walk(inner)
			}
		case interface{ Unwrap() []error }:
			for _, inner := range u.Unwrap() {
				walk(inner)
			}
		}
	}
	walk(err)
	return out
}

// destroyOrphans destroys the orphans that are due and returns how many it destroyed. It keeps and
// notes the ones that the host refuses to destroy.
func destroyOrphans(ctx context.Context, p *pass, of *decision.Pruning) (removed int) {
	if len(of.OrphanRequests) == 0 || of.Error != "" {
		return 0
	}
	defer p.s.Activity("destroying %s on %s", english.Plural(len(of.OrphanRequests), "copy", "copies"), of.Side)()
	left := of.Datasets
	of.Datasets = nil
	for i, g := range of.OrphanRequests {
		err := hosts.Run(ctx, p.s.Side(of.Side), hosts.OpDestroyOrphans, []zfs.Orphan{g})
		switch {
		case err == nil:
			removed++
			of.Datasets = append(of.Datasets, left[i])
			p.ledger.Confirm(func(st *statedir.State) { st.DropOrphan(of.Side, g.Dataset) })
			p.journal.Log("%s on %s was destroyed, because its original was deleted on the source", g.Dataset, of.Side)
		case fault.ClassOf(err) == fault.Refused && !errors.Is(err, hosts.ErrForbidden):
			p.journal.Note("%s: deleted on the source: %v", of.Side, err)
		default:
			of.Error, of.Hint = "deleted on the source: "+err.Error(), fault.HintOf(err)
			return removed
		}
	}
	return removed
}
