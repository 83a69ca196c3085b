package failover

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/zfs"
)

// demote makes the former source a copy, after the copy became the source.
func (s *roleSwitch) demote(ctx context.Context) error {
	s.id = s.f.target.Role.ID
	newer := s.newer()
	if len(newer) > 0 && !s.f.options.Rollback && !s.f.options.Rotate {
		return fault.Refusef("to rename it and send in full: "+s.f.again("--rotate")+"\nto destroy these and roll it back: "+s.f.again("--rollback"),
			"%s: the former source has data that the copy lacks: %s", s.f.session.Job.Source, strings.Join(shorten(newer), ", "))
	}
	rotate := s.f.options.Rotate && len(newer) > 0
	if !rotate && s.f.state != decide.Switching { // switch compared before it changed a role
		if err := s.checkBlockSizes(ctx); err != nil && (!s.f.options.Rotate || fault.ClassOf(err) != fault.Refused) {
			return err
		} else if err != nil {
			s.f.note("%v", err)
			rotate = true
		}
	}
	s.planReadOnly(false)
	switch {
	case rotate:
	case len(newer) == 0:
		s.f.plan.add(s.f.session.Source, "check that the copy has all data", s.verify)
	default:
		if err := s.planRollback(newer); err != nil {
			return err
		}
	}
	if err := s.f.planTakeover(ctx, replicate.Recorded); err != nil {
		return err
	}
	if rotate {
		s.planRotate(newer)
	} else {
		s.planEnd()
	}
	return s.finish(ctx)
}

// finish carries the plan out, unless it is a dry run, and records the direction of the next run.
func (s *roleSwitch) finish(ctx context.Context) error {
	if s.f.options.DryRun {
		return nil
	}
	if err := s.f.carryOut(ctx); err != nil || s.f.waits {
		return err
	}
	s.f.recordDirection()
	return nil
}

// planFlags records the flags of the streams back on the former source: they must be those of the streams that made the
// copy (openzfs#6224).
func (s *roleSwitch) planFlags() {
	for _, d := range s.reads.Datasets {
		copied := s.f.listed.Find(s.f.copyRoot + strings.TrimPrefix(d.Name, s.f.root))
		if copied == nil || d.Properties[zfs.FlagsProperty].Local() {
			continue
		}
		if p := copied.Properties[zfs.FlagsProperty]; p.Local() && slices.Contains([]string{"Lc", "L", "c", "none"}, p.Value) {
			s.f.plan.set(s.f.session.Source, d.Name, map[string]string{zfs.FlagsProperty: p.Value})
		}
	}
}

// planUnmountable keeps the former source from being mounted at boot.
func (s *roleSwitch) planUnmountable() {
	for _, d := range s.reads.Datasets {
		if d.Type == zfs.Filesystem && d.Get("canmount") == "on" {
			s.f.plan.set(s.f.session.Source, d.Name, map[string]string{"canmount": "noauto"})
		}
	}
}

// planRotate renames the former source. The next run then sends in full. The rename is the last step, because the
// pair is no longer recognized after it.
func (s *roleSwitch) planRotate(newer []string) {
	d := s.reads.Datasets[0]
	a := zfs.DivergedCopy{Dataset: d.Name, GUID: d.GUID, As: d.Name + zfs.DivergedSuffix(s.f.session.Env.Now())}
	if len(newer) > 0 {
		s.f.note("%s keeps what the copy lacks: %s", a.As, strings.Join(shorten(newer), ", "))
	}
	s.planUnmountable()
	s.f.plan.add(s.f.session.Source, zfs.CommandLine([]string{"zfs", "rename", a.Dataset, a.As}), func(ctx context.Context) error {
		return hosts.Run(ctx, s.f.session.Source, hosts.OpRenameDiverged, []zfs.DivergedCopy{a})
	})
}

// planRollback plans to roll the former source back to the common snapshots.
func (s *roleSwitch) planRollback(newer []string) error {
	s.f.note("this destroys: %s", strings.Join(newer, ", "))
	for _, d := range s.reads.Datasets {
		copied := s.f.listed.Find(s.f.copyRoot + strings.TrimPrefix(d.Name, s.f.root))
		base, common := lastCommon(d, copied)
		if !common {
			return fault.Refusef("to rename the former source and send in full: "+s.f.again("--rotate"), "%s and the copy have no common snapshot", d.Name)
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
		s.f.plan.add(s.f.session.Source, fmt.Sprintf("roll back to %s, destroying %s and newer data", to.Snapshot(), english.Plural(len(to.Loses), "snapshot or bookmark", "snapshots and bookmarks")),
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
	if err := s.f.session.Source.Release(ctx, s.f.session.Job.Tag(s.f.t.Name), names); err != nil {
		return err
	}
	return hosts.Run(ctx, s.f.session.Source, hosts.OpRollback, to)
}

// planCleanup destroys the snapshots of earlier switches on both sides.
func (s *roleSwitch) planCleanup() {
	for _, side := range []struct {
		at  *session.Side
		all []*zfs.Dataset
	}{{s.f.session.Source, s.reads.Datasets}, {s.f.t, s.f.copies()}} {
		var names []string
		for _, d := range side.all {
			for _, v := range d.Snapshots() {
				if switchSnapshot.MatchString(v.Name) && v.Name != SnapshotPrefix+s.id && !s.isBase(d, v) {
					names = append(names, v.In(d.Name))
				}
			}
		}
		if len(names) == 0 {
			continue
		}
		s.f.plan.add(side.at, "destroy "+english.Plural(len(names), "snapshot", "")+" of earlier switches", func(ctx context.Context) error {
			if err := hosts.Run(ctx, side.at, hosts.OpDestroy, names); err != nil { // another target may hold them
				s.f.note("%s: cannot destroy the snapshots of earlier switches: %v", side.at.Host.Label(), err)
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
	if err := s.f.permit(decide.AbortEvent); err != nil {
		return err
	}
	if err := s.list(ctx); err != nil {
		return err
	}
	s.planRestore(ctx, func(d *zfs.Dataset) (string, bool, error) {
		o, known, err := replicate.Recorded(d)
		return o.Set["readonly"], known && o.Set["readonly"] != "" && o.Set["readonly"] != d.Get("readonly"), err
	})
	if s.f.options.DryRun {
		return nil
	}
	return s.f.carryOut(ctx)
}

// planRestore plans to make the source writable and to mount it. readonly returns the value to set.
func (s *roleSwitch) planRestore(ctx context.Context, readonly func(*zfs.Dataset) (value string, change bool, err error)) {
	src := s.f.session.Source
	for _, d := range s.reads.Datasets {
		switch value, change, err := readonly(d); {
		case err != nil:
			s.f.note("%s: %v", d.Name, err)
		case change:
			s.f.plan.set(src, d.Name, map[string]string{"readonly": value})
		}
	}
	for _, d := range s.v.All {
		if d.Type == zfs.Filesystem && d.Get("canmount") == "on" && strings.HasPrefix(d.Get("mountpoint"), "/") && (!d.Encrypted() || d.KeyLoaded()) {
			s.planMountAgain(ctx, d)
		}
	}
	if r := s.roleBefore(); r.Kind != "" {
		s.f.plan.set(src, s.f.root, map[string]string{zfs.RoleProperty: r.String()})
	} else {
		s.f.plan.set(src, s.f.root, nil, zfs.RoleProperty)
	}
	for _, d := range s.reads.Datasets {
		var will []string
		if d.Name == s.f.root {
			will = append(will, zfs.OriginProperty)
		}
		s.f.plan.forget(src, d, will...)
	}
}

// planMountAgain plans to mount a filesystem of the source that this switch unmounted.
func (s *roleSwitch) planMountAgain(ctx context.Context, d *zfs.Dataset) {
	src := s.f.session.Source
	if src.Host.Require(ctx, hosts.OpMount) != nil {
		s.f.next = append(s.f.next, fmt.Sprintf("%s: check that no part of %s is a symbolic link, and mount %s", src.Host.Label(), d.Get("mountpoint"), d.Name))
		return
	}
	s.f.plan.add(src, "mount "+d.Name, func(ctx context.Context) error {
		_, err := hosts.Call(ctx, src, hosts.OpMount, zfs.MountRequest{Dataset: d.Name, Over: true, Trusted: true})
		return err
	})
}

// roleBefore returns the role that the source had before the switch: the zero Role, or that of a copy
// which an earlier fail over made the source.
func (s *roleSwitch) roleBefore() zfs.Role {
	id := cmp.Or(s.before, s.f.source.Role.Before)
	if id == "" {
		return zfs.Role{}
	}
	r := s.f.newRole(zfs.RoleSource, "")
	r.ID = id
	return r
}
