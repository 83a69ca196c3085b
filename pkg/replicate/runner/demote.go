package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// demote makes the former source a copy, after the copy became the source.
func (s *roleSwitch) demote(ctx context.Context) error {
	if s.state == decide.Switched {
		if err := s.planTakeover(ctx, recorded); err != nil { // copies that waited for their key
			return err
		}
		s.addFileStep()
		return s.finish(ctx)
	}
	s.id = s.target.Role.ID
	newer := s.newer()
	if len(newer) > 0 && !s.Rollback && !s.Rotate {
		return fault.Refusef("to rename it and send in full: "+s.again("--rotate")+"\nto destroy these and roll it back: "+s.again("--rollback"),
			"%s: the former source has data that the copy lacks: %s", s.result.Source, strings.Join(shorten(newer), ", "))
	}
	rotate := s.Rotate && len(newer) > 0
	if !rotate && s.state != decide.Switching { // switch compared before it changed a role
		if err := s.checkBlockSizes(ctx); err != nil && (!s.Rotate || fault.ClassOf(err) != fault.Refused) {
			return err
		} else if err != nil {
			s.note("%v", err)
			rotate = true
		}
	}
	s.planReadOnly(false)
	switch {
	case rotate:
		s.planRotate(newer)
	case len(newer) == 0:
		s.add(s.jobRun.session.Source, "check that the copy has all data", s.verify)
	default:
		if err := s.planRollback(newer); err != nil {
			return err
		}
	}
	if err := s.planTakeover(ctx, recorded); err != nil {
		return err
	}
	if rotate {
		return s.finish(ctx) // the former source has another name now
	}
	s.planEnd()
	return s.finish(ctx)
}

// finish carries the plan out, unless it is a dry run.
func (s *roleSwitch) finish(ctx context.Context) error {
	if s.DryRun {
		return nil
	}
	return s.carryOut(ctx)
}

// planStandby plans the roles and properties of the former source.
func (s *roleSwitch) planStandby() {
	s.planUnmountable()
	for _, d := range s.reads.Datasets {
		// Streams back must have the flags of the streams that made the copy (openzfs#6224).
		copied := s.listed.Find(s.copyRoot + strings.TrimPrefix(d.Name, s.root))
		if copied == nil || d.Properties[zfs.FlagsProperty].Local() {
			continue
		}
		if p := copied.Properties[zfs.FlagsProperty]; p.Local() && slices.Contains([]string{"Lc", "L", "c", "none"}, p.Value) {
			s.set(s.jobRun.session.Source, d.Name, map[string]string{zfs.FlagsProperty: p.Value})
		}
	}
	role := s.target.Role
	role.Kind = zfs.RoleStandby
	s.set(s.jobRun.session.Source, s.root, map[string]string{zfs.RoleProperty: role.String()})
}

// planUnmountable keeps the former source from being mounted at boot.
func (s *roleSwitch) planUnmountable() {
	for _, d := range s.reads.Datasets {
		if d.Type == zfs.Filesystem && d.Get("canmount") == "on" {
			s.set(s.jobRun.session.Source, d.Name, map[string]string{"canmount": "noauto"})
		}
	}
}

// planRotate renames the former source. The reverse job then sends in full. The job file changes
// first, because the pair is no longer recognized after the rename.
func (s *roleSwitch) planRotate(newer []string) {
	d := s.reads.Datasets[0]
	a := zfs.DivergedCopy{Dataset: d.Name, GUID: d.GUID, As: d.Name + zfs.DivergedSuffix(s.Env.Now())}
	if len(newer) > 0 {
		s.note("%s keeps what the copy lacks: %s", a.As, strings.Join(shorten(newer), ", "))
	}
	s.planUnmountable()
	s.addFileStep()
	s.add(s.jobRun.session.Source, zfs.CommandLine([]string{"zfs", "rename", a.Dataset, a.As}), func(ctx context.Context) error {
		return hosts.Run(ctx, s.jobRun.session.Source, hosts.OpRenameDiverged, []zfs.DivergedCopy{a})
	})
}

// planRollback plans to roll the former source back to the common snapshots.
func (s *roleSwitch) planRollback(newer []string) error {
	s.note("this destroys: %s", strings.Join(newer, ", "))
	for _, d := range s.reads.Datasets {
		copied := s.listed.Find(s.copyRoot + strings.TrimPrefix(d.Name, s.root))
		base, common := lastCommon(d, copied)
		if !common {
			return fault.Refusef("to rename the former source and send in full: "+s.again("--rotate"), "%s and the copy have no common snapshot", d.Name)
		}
		to := zfs.Rollback{Dataset: d.Name, To: zfs.SnapshotID{Name: base.Name, GUID: base.GUID}}
		for _, v := range d.Versions {
			if v.CreateTXG > base.CreateTXG {
				to.Loses = append(to.Loses, v)
			}
		}
		if len(to.Loses) == 0 && !d.Modified() {
			continue
		}
		s.add(s.jobRun.session.Source, fmt.Sprintf("roll back to %s, destroying %s and newer data", to.Snapshot(), english.Plural(len(to.Loses), "snapshot or bookmark", "snapshots and bookmarks")),
			func(ctx context.Context) error { return s.rollBack(ctx, to) })
	}
	return nil
}

// rollBack releases the job's own holds on the snapshots to destroy, and rolls back.
func (s *roleSwitch) rollBack(ctx context.Context, to zfs.Rollback) error {
	var names []string
	for _, v := range to.Loses {
		if v.Kind == zfs.Snapshot {
			names = append(names, v.In(to.Dataset))
		}
	}
	if err := s.jobRun.session.Source.Release(ctx, replicate.Tag(s.session.Job.Name, s.t.Name), names); err != nil {
		return err
	}
	return hosts.Run(ctx, s.jobRun.session.Source, hosts.OpRollback, to)
}

// planCleanup destroys the snapshots of earlier switches on both sides.
func (s *roleSwitch) planCleanup() {
	for _, side := range []struct {
		at  *side
		all []*zfs.Dataset
	}{{s.jobRun.session.Source, s.reads.Datasets}, {s.t, s.copies()}} {
		var names []string
		for _, d := range side.all {
			for _, v := range d.Snapshots() {
				if switchSnapshot.MatchString(v.Name) && v.Name != switchPrefix+s.id && !s.isBase(d, v) {
					names = append(names, v.In(d.Name))
				}
			}
		}
		if len(names) == 0 {
			continue
		}
		s.add(side.at, "destroy "+english.Plural(len(names), "snapshot", "")+" of earlier switches", func(ctx context.Context) error {
			if err := hosts.Run(ctx, side.at, hosts.OpDestroy, names); err != nil { // another target may hold them
				s.note("%s: cannot destroy the snapshots of earlier switches: %v", side.at.Host.Label(), err)
			}
			return nil
		})
	}
}

// isBase reports whether a snapshot is the most recent one of a dataset, and so the common one.
func (s *roleSwitch) isBase(d *zfs.Dataset, v zfs.Version) bool {
	latest, _ := d.Latest()
	return latest.GUID == v.GUID
}

// abort makes the source writable again, if the copy is not the source yet.
func (s *roleSwitch) abort(ctx context.Context) error {
	if err := s.permit(decide.AbortEvent); err != nil {
		return err
	}
	if err := s.list(ctx); err != nil {
		return err
	}
	s.planRestore(ctx, func(d *zfs.Dataset) (string, bool, error) {
		o, known, err := recorded(d)
		return o.Set["readonly"], known && o.Set["readonly"] != "" && o.Set["readonly"] != d.Get("readonly"), err
	})
	return s.finish(ctx)
}

// undo removes the role of a source that is still writable, and mounts it again.
func (s *roleSwitch) undo(ctx context.Context) error {
	f := *s.failover
	f.result = &Failover{Schema: SwitchSchema}
	back := *s
	back.failover = &f
	back.planRestore(ctx, func(*zfs.Dataset) (string, bool, error) { return "", false, nil })
	return back.carryOut(ctx)
}

// planRestore plans to make the source writable and to mount it. readonly returns the value to set.
func (s *roleSwitch) planRestore(ctx context.Context, readonly func(*zfs.Dataset) (value string, change bool, err error)) {
	src := s.jobRun.session.Source
	for _, d := range s.reads.Datasets {
		switch value, change, err := readonly(d); {
		case err != nil:
			s.note("%s: %v", d.Name, err)
		case change:
			s.set(src, d.Name, map[string]string{"readonly": value})
		}
	}
	for _, d := range s.v.All {
		if d.Type == zfs.Filesystem && d.Get("canmount") == "on" && strings.HasPrefix(d.Get("mountpoint"), "/") && (!d.Encrypted() || d.KeyLoaded()) {
			s.planMountAgain(ctx, d)
		}
	}
	if r := s.roleBefore(); r.Kind != "" {
		s.set(src, s.root, map[string]string{zfs.RoleProperty: r.String()})
	} else {
		s.set(src, s.root, nil, zfs.RoleProperty)
	}
	for _, d := range s.reads.Datasets {
		var will []string
		if d.Name == s.root {
			will = append(will, zfs.OriginProperty)
		}
		s.forget(src, d, will...)
	}
}

// planMountAgain plans to mount a filesystem of the source that this switch unmounted.
func (s *roleSwitch) planMountAgain(ctx context.Context, d *zfs.Dataset) {
	src := s.jobRun.session.Source
	if src.Host.Require(ctx, hosts.OpMount) != nil {
		s.result.Next = append(s.result.Next, fmt.Sprintf("%s: check that no part of %s is a symbolic link, and mount %s", src.Host.Label(), d.Get("mountpoint"), d.Name))
		return
	}
	s.add(src, "mount "+d.Name, func(ctx context.Context) error {
		_, err := hosts.Call(ctx, src, hosts.OpMount, zfs.MountRequest{Dataset: d.Name, Over: true, Trusted: true})
		return err
	})
}

// roleBefore returns the role that the source had before the switch: the zero Role, or that of a copy
// which an earlier fail over made the source.
func (s *roleSwitch) roleBefore() zfs.Role {
	id := cmp.Or(s.before, s.source.Role.Before)
	if id == "" {
		return zfs.Role{}
	}
	r := s.newRole(zfs.RoleSource, "")
	r.ID = id
	if s.file != nil { // the job of the earlier fail over is the reverse one
		if j := s.file.Jobs.FindReverse(s.copyEndpoint(), s.jobRun.session.Source.At); j != nil && len(j.Targets) > 0 {
			r.Job, r.Target = j.Name, j.Targets[0].Name
		}
	}
	return r
}

// addFileStep plans the change of the job file, if there is one.
func (s *roleSwitch) addFileStep() {
	if s.file == nil || !s.file.needs() {
		return
	}
	if s.file.edit.Add != nil {
		s.result.ReverseText = s.file.edit.Add.PrintedText()
	}
	s.add(nil, s.file.describe(), func(ctx context.Context) error {
		err := statedir.WithLock(ctx, s.Env.StateDir, s.file.write) // another switch may change the file
		if errors.Is(err, fs.ErrPermission) {                       // root owns the state directory
			err = s.file.write()
		}
		return err
	})
}

// planFile prepares the change of the job file. It refuses a file that cannot be changed before
// anything else changes.
func (s *roleSwitch) planFile() error {
	other := s.file.Jobs.FindReverse(s.copyEndpoint(), s.jobRun.session.Source.At)
	s.file.edit = replicate.RoleEdit{Standby: s.session.Job.Name}
	switch {
	case other == nil:
		reverse, err := s.session.Job.Reverse(s.t.Target, s.copyEndpoint(), s.jobRun.session.Source.At)
		if err != nil {
			return err
		}
		if s.file.Jobs.Has(reverse.Name) {
			return fault.Refusef("rename that job", "job %q: the reverse job would be named %q, which another job has", s.session.Job.Name, reverse.Name)
		}
		s.file.edit.Add, s.result.ReverseName = reverse, reverse.Name
	case other.Standby:
		s.file.edit.Active, s.result.ReverseName = other.Name, other.Name
	default:
		s.result.ReverseName = other.Name
	}
	if err := s.file.check(); err != nil {
		if s.file.edit.Add != nil { // to append by hand
			s.result.ReverseText = s.file.edit.Add.PrintedText()
		}
		return err
	}
	if s.file.needs() && slices.ContainsFunc([]string{s.session.Job.Property, s.t.Target.Property}, func(p string) bool { return p != "" }) && s.file.edit.Add != nil {
		s.note("%s does not select datasets by a property: check its include and exclude", s.result.ReverseName)
	}
	s.notePing()
	return nil
}

// notePing notes if the pings of the reverse job do not continue those of the job.
func (s *roleSwitch) notePing() {
	added := s.file.added()
	if added == nil || !s.session.Job.Notify.HasPing() {
		return
	}
	now, err := PingURL(added)
	if err != nil {
		s.note("%s sends no pings until this is repaired: %v: %s", added.Name, err, fault.HintOf(err))
		return
	}
	if was, err := PingURL(s.session.Job); err == nil && was.String() != now.String() {
		s.note("%s pings another check than %s, which sends no more pings: pause its check on %s", added.Name, s.session.Job.Name, was.Hostname())
	}
}
