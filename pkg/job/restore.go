package job

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// Restore is a request for `zxfer restore`: a Send the other way round.
type Restore struct {
	Send
	// At, where not zero, asks for each dataset's newest snapshot of then or before.
	At    time.Time
	Mount bool // --mount: mount what was restored, where its key is loaded
}

// restoreJob is a restore on its way: that of a sending, with a stage before it and
// one behind it.
type restoreJob struct {
	*sendJob
	at    time.Time
	mount bool
	notes []string // of what was chosen
	// idle are filesystems of the target that were there and would be mounted: an
	// interrupted --rollback may have unmounted them.
	idle []string
}

// RunRestore runs `zxfer restore`. Errors are classed as those of RunSend.
func RunRestore(ctx context.Context, req Restore, at *hosts.Set, rep Reporter) (*Report, error) {
	req.Plan.Restore, req.Plan.CarryProperties = true, true
	t := &restoreJob{sendJob: newSendJob(req.Send, at, rep), at: req.At, mount: req.Mount}
	t.report.Schema = "zxfer.restore/v1"
	return t.concluded(outcome.Settle(ctx, t.restore(ctx)))
}

func (t *restoreJob) restore(ctx context.Context) error {
	if err := t.checkTarget(); err != nil {
		return err
	}
	defer t.warm(ctx, &t.req)()
	if err := t.begin(ctx, &jobRules{survey: t.survey, review: t.review}); err != nil || t.req.DryRun {
		return err
	}
	for _, stage := range []func(context.Context) error{t.unmount, t.rollBack} {
		if err := t.persist(ctx, stage); err != nil {
			t.report.Next = t.outOfUse()
			return changed(err)
		}
	}
	if err := t.deliver(ctx); err != nil {
		t.report.Next = t.outOfUse()
		return err
	}
	err := withActivity(ctx, t.rep, "giving back what the copy had changed", func(ctx context.Context) error { return t.persist(ctx, t.handOver) })
	if err != nil {
		t.report.Next = t.outOfUse()
	}
	if err != nil && fault.ClassOf(err) != fault.Interrupted {
		err = fmt.Errorf("the data arrived, but: %w", changed(err))
	}
	if err == nil {
		t.report.Diverged = t.ahead()
	}
	return err
}

// ahead returns the command that makes the copy follow its original again, if the original went
// back behind the newest snapshot of the copy; "" if nothing is to be done. It is typed where the
// restore was.
func (t *restoreJob) ahead() string {
	var below, any bool
	for _, d := range t.report.Plan.Datasets {
		if d.Restore != nil && d.Restore.Ahead {
			any, below = true, below || d.Source != t.req.Plan.Source
		}
	}
	if !any {
		return ""
	}
	// A send rolls back only what it has something to send to: a new snapshot.
	words := strings.Fields("zxfer send --rollback --snapshot=")
	if below {
		words = append(words, "-R")
	}
	from, to := t.req.Target, t.req.Source
	from.Name, to.Name = t.state.Target.Root, t.req.Plan.Source
	return zfs.CommandLine(append(words, from.String(), to.String()))
}

// own has f called with the target as what hands datasets over.
func (t *restoreJob) own(ctx context.Context, f func(hosts.Restorer) error) error {
	return t.target.Do(ctx, hosts.WithRole(f))
}

// survey is that of a send, with what a restore depends on besides.
func (t *restoreJob) survey(ctx context.Context) (state plan.State, err error) {
	if err := t.own(ctx, func(hosts.Restorer) error { return nil }); err != nil {
		return state, err
	}
	if err := resolve(ctx, t.ends, &t.req, t.rep.Log); err != nil {
		return state, err
	}
	if target, err := plan.TargetName(t.req.Plan.Source, t.req.Plan.Target); err == nil { // else survey says so
		t.target.Sync(ctx, target)
	}
	if state, err = survey(ctx, t.ends, t.req.Plan); err != nil {
		return state, err
	}
	state.Source.Skip(zfs.HealPrefix)
	if !t.at.IsZero() {
		if t.notes, err = asOf(ctx, &t.source, &state.Source, t.at, t.req.Plan.Wanted); err != nil {
			return state, err
		}
	}
	if len(state.Target.Datasets) == 0 {
		return state, nil
	}
	below := state.Target
	if !t.req.Plan.Recursive {
		if below, err = t.target.List(ctx, hosts.ListQuery{Dataset: state.Target.Root, Recursive: true, Alone: true}); err != nil {
			return state, err
		}
	}
	t.idle = nil
	for _, d := range below.Datasets {
		switch {
		case d.Get("mounted") == "yes":
			state.TargetMounted = append(state.TargetMounted, d.Name)
		case t.req.Plan.Rollback && mounts(d):
			t.idle = append(t.idle, d.Name)
		}
	}
	return state, nil
}

// asOf leaves of a source what was there at the time that is asked for, and says
// what that is, of the snapshots that are wanted.
func asOf(ctx context.Context, source *end, listing *zfs.Listing, at time.Time, wanted func(name string) bool) (notes []string, err error) {
	taken, err := source.Created(ctx, listing.SnapshotNames())
	if err != nil {
		return nil, err
	}
	var none []string // below the root, of then
	for _, d := range listing.Datasets {
		was := len(d.Snapshots())
		var younger []zfs.Version
		d.Versions = slices.DeleteFunc(d.Versions, func(v zfs.Version) bool {
			if v.Kind != zfs.Snapshot {
				return false
			}
			when, there := taken[v.In(d.Name)]
			is := there && when.After(at)
			if is && wanted(v.Name) {
				younger = append(younger, v)
			}
			return is || !there // it is gone meanwhile
		})
		then := d.Snapshots()
		if d.Name != listing.Root {
			if was > 0 && len(then) == 0 {
				none = append(none, d.Name)
			}
			continue
		}
		named := func(v zfs.Version) string { return v.In(d.Name) + ", of " + Clock(taken[v.In(d.Name)]) }
		then = slices.DeleteFunc(then, func(v zfs.Version) bool { return !wanted(v.Name) })
		switch {
		case len(then) == 0 && len(younger) > 0:
			return nil, fault.Refusef("ask for a later time, or name the snapshot",
				"%s: %s has no snapshot of %s or before; the oldest is %s", source.Label(), d.Name, Clock(at), named(younger[0]))
		case len(then) > 0:
			note := "of " + Clock(at) + " or before, the newest is " + named(then[len(then)-1])
			if len(younger) > 0 {
				note += "; the next one is " + named(younger[0])
			}
			notes = append(notes, note)
		}
	}
	if len(none) > 0 {
		notes = append(notes, "of then or before there is no snapshot of "+finding.Some(none, 3))
	}
	return notes, nil
}

// Clock shows a time as a person writes it, with its zone.
func Clock(at time.Time) string { return at.Format("2006-01-02 15:04:05 MST") }

// review says what was chosen, and what mounting would hide.
func (t *restoreJob) review(ctx context.Context, p *plan.Plan) error {
	p.Notes = slices.Concat(t.notes, p.Notes)
	t.inUse(ctx, p)
	at := map[string]*plan.Dataset{}
	var paths []string
	for _, d := range p.Datasets {
		if d.Restore != nil && d.Restore.Mountpoint != "" {
			at[d.Restore.Mountpoint] = d
			paths = append(paths, d.Restore.Mountpoint)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	found, err := hosts.Call(ctx, t.target.Do, hosts.Restorer.InUse, paths)
	if errors.Is(err, hosts.ErrForbidden) {
		return nil
	}
	for _, path := range paths {
		why, d := found[path], at[path]
		if why == "" {
			continue
		}
		text := fmt.Sprintf("%s mounts at %s, which %s", d.Target, path, why)
		if !t.mount {
			p.Notes = append(p.Notes, text)
			continue
		}
		p.Refuse(finding.Finding{ID: plan.Mounted, Source: d.Source, Target: d.Target, Summary: t.target.Label() + ": " + text,
			Remedy: "choose another place: " + t.elsewhere(p) + "\nor leave {{mount}} out, and mount it by hand"})
	}
	return err
}

// mounts tells whether a filesystem is one that zfs mount -a mounts.
func mounts(d *zfs.Dataset) bool {
	return d.Get("canmount") == "on" && strings.HasPrefix(d.Get("mountpoint"), "/")
}

// outOfUse are the commands that mount what was unmounted, now or before, where a
// restore does not get to it.
func (t *restoreJob) outOfUse() []string {
	names := slices.Clone(t.idle)
	for _, d := range t.report.Plan.Datasets {
		if d.Restore != nil {
			names = append(names, d.Restore.Unmount...)
		}
	}
	slices.Sort(names) // those above first
	var out []string
	for _, name := range slices.Compact(names) {
		out = append(out, zfs.CommandLine([]string{"zfs", "mount", name}))
	}
	return out
}

// elsewhere is how the tree gets another mountpoint: with the first stream of its
// root, or by hand where that has arrived.
func (t *restoreJob) elsewhere(p *plan.Plan) string {
	for _, d := range p.Datasets {
		if d.Source == t.req.Plan.Source && len(d.Steps) == 0 {
			return "there, " + zfs.CommandLine([]string{"zfs", "set", "mountpoint=/PATH", d.Target})
		}
	}
	return "{{set mountpoint=/PATH}}"
}

// inUse refuses to change volumes under their users, where the host can tell of one.
func (t *restoreJob) inUse(ctx context.Context, p *plan.Plan) {
	at := map[string]*plan.Dataset{}
	for _, d := range p.Datasets {
		if d.Type == zfs.Volume && (len(d.Steps) > 0 || d.RollsBack()) && d.Restore != nil && !d.Restore.Due {
			at[zfs.DeviceOf(d.Target)] = d
		}
	}
	if len(at) == 0 {
		return
	}
	paths := slices.Sorted(maps.Keys(at))
	found, _ := hosts.Call(ctx, t.target.Do, hosts.Restorer.InUse, paths) // it may not tell
	for _, path := range paths {
		if d, why := at[path], found[path]; why != "" {
			p.Refuse(finding.Finding{ID: plan.Mounted, Source: d.Source, Target: d.Target,
				Summary: fmt.Sprintf("%s: %s %s, and would change under its user", t.target.Label(), path, why),
				Remedy:  "stop what uses it: lsblk and fuser -vm tell what does"})
		}
	}
}

// unmount unmounts the filesystems that change. It is idempotent.
func (t *restoreJob) unmount(ctx context.Context) error {
	for _, d := range t.report.Plan.Datasets {
		if d.Restore == nil || len(d.Restore.Unmount) == 0 {
			continue
		}
		t.rep.Log("unmounting " + strings.Join(d.Restore.Unmount, ", "))
		if err := t.own(ctx, func(o hosts.Restorer) error { return o.Unmount(ctx, d.Target) }); err != nil {
			return err
		}
		t.changed = true
	}
	return nil
}

// asPlanned refuses a rollback that would destroy something that was made after the plan.
func (t *restoreJob) asPlanned(ctx context.Context, to zfs.Rollback) error {
	l, err := t.target.List(ctx, hosts.ListQuery{Dataset: to.Dataset, Versions: true, Alone: true})
	if err != nil {
		return err
	}
	if d := l.Find(to.Dataset); d != nil {
		if _, why := to.Newer(d); why != "" {
			return fault.Refusef("the same command plans again, and lists what would be lost", "%s: %s is not rolled back: %s", t.target.Label(), to.Dataset, why)
		}
	}
	return nil
}

// rollBack rolls datasets back to the wanted snapshot, if they have it. It is idempotent, and the
// same command completes it after a crash: before the holds moved, between placing and removing
// one, and between the destruction of the newer snapshots and the rollback, the dataset still has
// the wanted snapshot.
func (t *restoreJob) rollBack(ctx context.Context) error {
	for _, d := range t.report.Plan.Datasets {
		if !d.RollsBack() {
			continue
		}
		to := *d.Restore.Rollback
		if err := t.asPlanned(ctx, to); err != nil { // before any hold moves
			return err
		}
		t.rep.Log("rolling back to " + to.Snapshot())
		t.changed = true
		if err := t.target.Do(ctx, func(st hosts.Host) error { return moveHolds(ctx, st, d.Moves) }); err != nil {
			return err
		}
		if err := t.own(ctx, func(o hosts.Restorer) error { return o.Rollback(ctx, to) }); err != nil {
			return err
		}
	}
	return nil
}
