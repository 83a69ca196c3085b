// Package restore runs `zxfer restore`: a send from a copy back to its original, with stages before and after the move,
// the restore of files, and the mount of restored filesystems.
package restore

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
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// Request is a request for `zxfer restore`: a Send from a copy back to its original.
type Request struct {
	Send send.Request
	// At, if not zero, selects each dataset's most recent snapshot taken at or before that time.
	At    time.Time
	Mount bool // --mount: mount the restored filesystems whose key is loaded
}

// restoreJob is a running restore: a send.Job with additional stages before and after the move.
type restoreJob struct {
	send  *send.Job
	at    time.Time
	mount bool
	notes []string // on the choice of snapshots
	// unmounted holds the target's unmounted filesystems that normally mount. An interrupted
	// --rollback may have unmounted them.
	unmounted []string
	remount   map[string]bool // filesystems that this restore unmounts, and mounts again at its end
}

// Run runs `zxfer restore`. Errors are classified as in send.Run.
func Run(ctx context.Context, req Request, at *hosts.Set, rep send.Reporter) (*send.Report, error) {
	req.Send.Plan.Restore, req.Send.Plan.CarryProperties = true, true
	t := &restoreJob{send: send.New(req.Send, at, rep), at: req.At, mount: req.Mount, remount: map[string]bool{}}
	t.send.Report.Schema = "zxfer.restore/v1"
	return t.send.Finish(outcome.Settle(ctx, t.restore(ctx)))
}

func (t *restoreJob) restore(ctx context.Context) (err error) {
	if err := t.send.Prepare(ctx, &send.Rules{Survey: t.survey, Review: t.review}); err != nil || t.send.Request.DryRun {
		return err
	}
	defer func() {
		if err != nil {
			t.send.Report.Next = t.remountAfterFailure(ctx)
		}
	}()
	for _, stage := range []func(context.Context) error{t.unmount, t.rollBack} {
		if err := t.send.Retry(ctx, stage); err != nil {
			return ends.Changed(err)
		}
	}
	if err := t.send.Deliver(ctx); err != nil {
		return err
	}
	err = ends.WithActivity(ctx, t.send.Reporter, "restoring the original properties", func(ctx context.Context) error { return t.send.Retry(ctx, t.handOver) })
	if err != nil && fault.ClassOf(err) != fault.Interrupted {
		err = fmt.Errorf("the data was received, but: %w", ends.Changed(err))
	}
	if err == nil {
		t.send.Report.Diverged = t.resyncCommand()
	}
	return err
}

// survey surveys like a send and adds mount states and the point in time.
func (t *restoreJob) survey(ctx context.Context) (state plan.State, err error) {
	if err := send.Resolve(ctx, t.send.Ends, t.send.Request, t.send.Reporter.Log); err != nil {
		return state, err
	}
	if target, err := plan.TargetName(t.send.Request.Plan.Source, t.send.Request.Plan.Target); err == nil { // otherwise survey returns the error
		t.send.Ends.Target.Conn.Sync(ctx, target)
	}
	if state, err = send.Survey(ctx, t.send.Ends, t.send.Request.Plan, false); err != nil {
		return state, err
	}
	state.Source.DropSnapshots(zfs.HealPrefix)
	if !t.at.IsZero() {
		if t.notes, err = asOf(ctx, &t.send.Ends.Source, &state.Source, t.at, t.send.Request.Plan.Selects); err != nil {
			return state, err
		}
	}
	if len(state.Target.Datasets) == 0 {
		return state, nil
	}
	below := state.Target
	if !t.send.Request.Plan.Recursive {
		if below, err = t.send.Ends.Target.Conn.List(ctx, hosts.ListQuery{Dataset: state.Target.Root, Recursive: true, NoAncestors: true}); err != nil {
			return state, err
		}
	}
	t.unmounted = nil
	for _, d := range below.Datasets {
		switch {
		case d.Get("mounted") == "yes":
			state.TargetMounted = append(state.TargetMounted, d.Name)
		case t.send.Request.Plan.Rollback && mounts(d):
			t.unmounted = append(t.unmounted, d.Name)
		}
	}
	return state, nil
}

// asOf removes from a listing the snapshots taken after at, or destroyed since. notes names the
// wanted snapshots around that time.
func asOf(ctx context.Context, source *ends.End, listing *zfs.Listing, at time.Time, wanted func(name string) bool) (notes []string, err error) {
	taken, err := source.Conn.Created(ctx, listing.SnapshotNames())
	if err != nil {
		return nil, err
	}
	var missing []string // descendants without a snapshot of that time
	for _, d := range listing.Datasets {
		had := len(d.Snapshots())
		var younger []zfs.Version
		d.Versions = slices.DeleteFunc(d.Versions, func(v zfs.Version) bool {
			if v.Kind != zfs.Snapshot {
				return false
			}
			when, exists := taken[v.In(d.Name)]
			later := exists && when.After(at)
			if later && wanted(v.Name) {
				younger = append(younger, v)
			}
			return later || !exists // destroyed since
		})
		remaining := d.Snapshots()
		if d.Name != listing.Root {
			if had > 0 && len(remaining) == 0 {
				missing = append(missing, d.Name)
			}
			continue
		}
		named := func(v zfs.Version) string { return v.In(d.Name) + ", of " + formatTime(taken[v.In(d.Name)]) }
		remaining = slices.DeleteFunc(remaining, func(v zfs.Version) bool { return !wanted(v.Name) })
		switch {
		case len(remaining) == 0 && len(younger) > 0:
			return nil, fault.Refusef("name a later time, or a snapshot",
				"%s: %s has no snapshot taken at or before %s; the oldest is %s", source.Conn.Label(), d.Name, formatTime(at), named(younger[0]))
		case len(remaining) > 0:
			note := "at or before " + formatTime(at) + ", the most recent is " + named(remaining[len(remaining)-1])
			if len(younger) > 0 {
				note += "; the next one is " + named(younger[0])
			}
			notes = append(notes, note)
		}
	}
	if len(missing) > 0 {
		notes = append(notes, "there is no earlier snapshot of "+finding.JoinFirst(missing, 3))
	}
	return notes, nil
}

// formatTime formats a time with its zone for the user.
func formatTime(at time.Time) string { return at.Format("2006-01-02 15:04:05 MST") }

// review adds notes on the chosen snapshots and on mountpoints in use. With --mount it refuses
// the latter.
func (t *restoreJob) review(ctx context.Context, p *plan.Plan) error {
	p.Notes = slices.Concat(t.notes, p.Notes)
	t.refuseInUse(ctx, p)
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
	if err := t.noteOthers(ctx, p, at); err != nil {
		return err
	}
	switch unsupported := t.send.Ends.Target.Conn.Require(ctx, hosts.OpInUse); {
	case unsupported == nil:
	case fault.ClassOf(unsupported) != fault.Refused:
		return unsupported
	case !t.mount:
		return nil
	default:
		return fault.Refusef("omit {{mount}}, and mount it there",
			"%s: cannot check without zxfer whether %s is empty", t.send.Ends.Target.Conn.Label(), strings.Join(paths, ", "))
	}
	found, err := hosts.Call(ctx, t.send.Ends.Target.Conn, hosts.OpInUse, paths)
	if errors.Is(err, hosts.ErrForbidden) {
		return nil
	}
	for _, path := range paths {
		why, d := found[path], at[path]
		if why == "" {
			continue
		}
		t.notePlaceTaken(p, d, fmt.Sprintf("%s mounts at %s, which %s", d.Target, path, why))
	}
	return err
}

// noteOthers notes filesystems that are not mounted now, but have the mountpoint of a restored one. at holds the
// restored ones by mountpoint.
func (t *restoreJob) noteOthers(ctx context.Context, p *plan.Plan, at map[string]*plan.Dataset) error {
	others, err := t.otherMountpoints(ctx)
	for path, d := range at {
		for _, name := range others[path] {
			if name != d.Target {
				t.notePlaceTaken(p, d, fmt.Sprintf("%s mounts at %s, the mountpoint of %s, which is not mounted now", d.Target, path, name))
			}
		}
	}
	return err
}

// otherMountpoints returns the filesystems of the target's host that are not mounted now, by mountpoint. It returns
// nil if the host does not mount, or lets only its own users list them.
func (t *restoreJob) otherMountpoints(ctx context.Context) (map[string][]string, error) {
	if t.send.Ends.Target.Conn.Require(ctx, hosts.OpMountpoints) != nil {
		return nil, nil
	}
	all, err := hosts.Call(ctx, t.send.Ends.Target.Conn, hosts.OpMountpoints, hosts.None{})
	if errors.Is(err, hosts.ErrForbidden) { // such a host checks it when it mounts
		return nil, nil
	}
	others := map[string][]string{}
	for _, m := range all {
		others[m.At] = append(others[m.At], m.Dataset)
	}
	return others, err
}

// notePlaceTaken refuses a mountpoint that is in use. Without --mount, it notes it.
func (t *restoreJob) notePlaceTaken(p *plan.Plan, d *plan.Dataset, text string) {
	if !t.mount {
		p.Notes = append(p.Notes, text)
		return
	}
	p.Refuse(finding.Finding{ID: plan.Mounted, Source: d.Source, Target: d.Target, Summary: t.send.Ends.Target.Conn.Label() + ": " + text,
		Remedy: "choose another mountpoint: " + t.otherMountpoint(p) + "\nor omit {{mount}}, and mount it later"})
}

// mounts reports whether zfs mount -a mounts a filesystem.
func mounts(d *zfs.Dataset) bool {
	return d.Get("canmount") == "on" && strings.HasPrefix(d.Get("mountpoint"), "/")
}

// otherMountpoint returns how to choose another mountpoint: with the first stream of the root, or
// by zfs set once it arrived.
func (t *restoreJob) otherMountpoint(p *plan.Plan) string {
	for _, d := range p.Datasets {
		if d.Source == t.send.Request.Plan.Source && len(d.Steps) == 0 {
			return t.send.Ends.Target.Conn.Command("zfs", "set", "mountpoint=/PATH", d.Target)
		}
	}
	return "{{set mountpoint=/PATH}}"
}

// refuseInUse refuses to change volumes that are in use, as far as the host can detect it.
func (t *restoreJob) refuseInUse(ctx context.Context, p *plan.Plan) {
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
	if t.send.Ends.Target.Conn.Require(ctx, hosts.OpInUse) != nil {
		for _, path := range paths {
			p.Refuse(finding.Finding{ID: plan.Mounted, Source: at[path].Source, Target: at[path].Target,
				Summary: fmt.Sprintf("%s: cannot check without zxfer whether %s is in use", t.send.Ends.Target.Conn.Label(), path),
				Remedy:  "restore to a new name"})
		}
		return
	}
	found, _ := hosts.Call(ctx, t.send.Ends.Target.Conn, hosts.OpInUse, paths) // it may be unable to tell
	for _, path := range paths {
		if d, why := at[path], found[path]; why != "" {
			p.Refuse(finding.Finding{ID: plan.Mounted, Source: d.Source, Target: d.Target,
				Summary: fmt.Sprintf("%s: %s %s, and would change during use", t.send.Ends.Target.Conn.Label(), path, why),
				Remedy:  "stop its user; lsblk and fuser -vm show it"})
		}
	}
}

// unmount unmounts the filesystems that change. It is idempotent.
func (t *restoreJob) unmount(ctx context.Context) error {
	for _, d := range t.send.Report.Plan.Datasets {
		if d.Restore == nil || len(d.Restore.Unmount) == 0 {
			continue
		}
		t.send.Reporter.Log("unmounting " + strings.Join(d.Restore.Unmount, ", "))
		for _, name := range d.Restore.Unmount {
			t.remount[name] = true
		}
		if err := hosts.Run(ctx, t.send.Ends.Target.Conn, hosts.OpUnmount, d.Target); err != nil {
			return err
		}
		t.send.MarkChanged()
	}
	return nil
}

// rollBack rolls datasets back to the wanted snapshot. It is idempotent: after a crash at any
// point the dataset still has that snapshot, and the same command completes the rollback.
func (t *restoreJob) rollBack(ctx context.Context) error {
	for _, d := range t.send.Report.Plan.Datasets {
		if !d.RollsBack() {
			continue
		}
		to := *d.Restore.Rollback
		if err := t.checkRollback(ctx, to); err != nil { // before any hold moves
			return err
		}
		t.send.Reporter.Log("rolling back to " + to.Snapshot())
		t.send.MarkChanged()
		if err := send.MoveHolds(ctx, t.send.Ends.Target.Conn, d.MovedHolds); err != nil {
			return err
		}
		if err := hosts.Run(ctx, t.send.Ends.Target.Conn, hosts.OpRollback, to); err != nil {
			return err
		}
	}
	return nil
}

// checkRollback refuses a rollback that would destroy something newer than the plan.
func (t *restoreJob) checkRollback(ctx context.Context, to zfs.Rollback) error {
	l, err := t.send.Ends.Target.Conn.List(ctx, hosts.ListQuery{Dataset: to.Dataset, Versions: true, NoAncestors: true})
	if err != nil {
		return err
	}
	if d := l.Find(to.Dataset); d != nil {
		if _, why := to.Newer(d); why != "" {
			return fault.Refusef("run the same command again, to list the losses", "%s: %s is not rolled back: %s", t.send.Ends.Target.Conn.Label(), to.Dataset, why)
		}
	}
	return nil
}

// remountTime limits how long a failed restore tries to mount what it unmounted.
const remountTime = 30 * time.Second

// remountAfterFailure mounts again what this restore unmounted, ancestors first. Otherwise programs would write into the
// directories below. It returns the command that mounts the rest, and everything that an earlier restore
// unmounted.
func (t *restoreJob) remountAfterFailure(ctx context.Context) (commands []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), remountTime)
	defer cancel()
	left := map[string]bool{}
	for _, name := range t.unmounted {
		left[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(t.remount)) {
		closed := false // an ancestor is not mounted: the directory is not in its files
		for above := zfs.ParentOf(name); above != ""; above = zfs.ParentOf(above) {
			closed = closed || left[above]
		}
		if closed {
			left[name] = true
			continue
		}
		if _, err := hosts.Call(ctx, t.send.Ends.Target.Conn, hosts.OpMount, zfs.MountRequest{Dataset: name, Over: true, Trusted: true}); err != nil {
			t.send.Reporter.Log(fmt.Sprintf("%s is not as before: %v", name, err))
			left[name] = true
		}
	}
	if len(left) == 0 {
		return nil
	}
	return []string{t.mountCommand(ctx, slices.Sorted(maps.Keys(left)))}
}

// mountCommand returns the command of the target's host that mounts filesystems of the target.
func (t *restoreJob) mountCommand(ctx context.Context, left []string) string {
	words, root := []string{"zxfer", "restore", "--mount"}, t.send.State.Target.Root
	if slices.ContainsFunc(left, func(name string) bool { return name != root }) {
		words = append(words, "-R")
	}
	command := zfs.CommandLine(append(words, root))
	if t.send.Ends.Target.Conn.Require(ctx, hosts.OpMount) != nil {
		command += "  # after you install zxfer on " + t.send.Ends.Target.Conn.Label()
	}
	return command
}

// resyncCommand returns the command that makes the copy follow its original again, to be run on
// the same host as the restore. It is "" unless the original was rolled back behind the copy.
func (t *restoreJob) resyncCommand() string {
	var below, any bool
	for _, d := range t.send.Report.Plan.Datasets {
		if d.Restore != nil && d.Restore.CopyAhead {
			any, below = true, below || d.Source != t.send.Request.Plan.Source
		}
	}
	if !any {
		return ""
	}
	// A send rolls back only to send something: the new snapshot.
	words := strings.Fields("zxfer send --rollback --snapshot=")
	if below {
		words = append(words, "-R")
	}
	from, to := t.send.Request.Target, t.send.Request.Source
	from.Name, to.Name = t.send.State.Target.Root, t.send.Request.Plan.Source
	return zfs.CommandLine(append(words, from.String(), to.String()))
}
