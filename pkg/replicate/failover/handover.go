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
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/zfs"
)

// planHandover plans the steps until the last increment has arrived.
func (s *roleSwitch) planHandover() {
	src := s.f.session.Source
	if s.f.state == decide.Normal {
		s.f.plan.add(src, "run the job while the source is writable", s.runJob)
		s.f.plan.add(s.f.t, "compare block sizes, so that increments back lose no data", s.checkBlockSizesNow)
		for _, d := range s.reads.Datasets {
			if o := zfs.OriginOf(d, d.Name == s.f.root); d.Name == s.f.root || len(o.Set) > 0 {
				s.f.plan.set(src, d.Name, map[string]string{zfs.OriginProperty: o.Encode()})
			} else {
				s.f.plan.forget(src, d)
			}
		}
		s.f.plan.set(src, s.f.root, map[string]string{zfs.RoleProperty: s.role(zfs.RoleHandover).String()})
	}
	s.planReadOnly(s.f.state == decide.Normal)
	s.f.plan.add(src, fmt.Sprintf("zfs snapshot @%s of %s, and send it to %s", SnapshotPrefix+s.id, english.Plural(len(s.reads.Datasets), "dataset", ""), s.f.copyName()), s.sendLast)
}

// planReadOnly plans to unmount the source and to make it read-only, in this order: zfs set
// readonly=on fails halfway while a program has a file open for writing. If the source is busy, and
// undo is set, it gets its role back.
func (s *roleSwitch) planReadOnly(undo bool) {
	src := s.f.session.Source
	if slices.ContainsFunc(s.v.All, func(d *zfs.Dataset) bool { return d.Get("mounted") == "yes" }) {
		step := s.f.plan.add(src, fmt.Sprintf("zfs unmount %s with its descendants", s.f.root), s.unmountSource)
		if step.undo = s.reportBusy; undo {
			step.undo = s.undoHandover
		}
	}
	for _, d := range s.reads.Datasets {
		if p := d.Properties["readonly"]; d.Name == s.f.root && p.Value != "on" || d.Name != s.f.root && p.Value != "on" && (p.Local() || p.Source == "received") {
			s.f.plan.set(src, d.Name, map[string]string{"readonly": "on"})
		}
	}
}

// reportBusy adds the commands that find the users of the source to an error.
func (s *roleSwitch) reportBusy(_ context.Context, err error) error {
	return fault.Failf("stop its users, then run the same command again; list them with: "+s.f.session.Source.Host.Command("fuser", "-vm", s.v.All[0].Get("mountpoint")), "%w", err)
}

// undoHandover removes the role of a source that is still writable, because it is busy, and mounts what was unmounted.
func (s *roleSwitch) undoHandover(ctx context.Context, err error) error {
	back := &roleSwitch{f: &failover{}, reads: s.reads, v: s.v, before: s.before}
	*back.f = *s.f
	back.f.plan = steps{}
	back.planRestore(ctx, func(*zfs.Dataset) (string, bool, error) { return "", false, nil })
	if failed := back.f.carryOut(context.WithoutCancel(ctx)); failed != nil {
		return fault.Failf("to give the source its role back: "+s.f.again("--abort"), "%w; the handover is recorded: %w", err, failed)
	}
	s.f.plan.undone()
	return s.reportBusy(ctx, fmt.Errorf("%w; the source is writable again", err))
}

// unmountSource unmounts the source's filesystems, descendants first.
func (s *roleSwitch) unmountSource(ctx context.Context) error {
	for _, d := range slices.Backward(s.v.All) {
		if d.Type != zfs.Filesystem || d.Get("mounted") == "no" {
			continue
		}
		if err := hosts.Run(ctx, s.f.session.Source, hosts.OpUnmount, d.Name); err != nil {
			return err
		}
	}
	return nil
}

// runJob runs the job once, without a freeze: the applications are stopped. The copy must be complete
// after it; other targets do not matter.
func (s *roleSwitch) runJob(ctx context.Context) error {
	j := *s.f.session.Job
	j.Freeze = nil
	again, err := s.f.session.With(&j)
	if err != nil {
		return err
	}
	run, err := s.f.runs.RunTo(ctx, again, s.f.t.Name)
	if run != nil {
		for _, t := range run.Targets {
			if t.Target != s.f.t.Name {
				continue
			}
			s.f.bytes += t.Bytes
			if t.Outcome != outcome.Done && t.Outcome != outcome.UpToDate {
				return fault.Failf(cmp.Or(t.Hint, s.f.session.Env.Command("log "+s.f.session.Job.Name)), "the run did not complete the copy: %s", cmp.Or(t.Error, run.FirstError(), t.Outcome))
			}
			return nil
		}
	}
	if err == nil {
		err = fmt.Errorf("the run did not reach target %s", s.f.t.Name)
	}
	return err
}

// sendLast takes the last snapshots of the read-only source and sends them. It fails unless the
// copy then has all data of the source.
func (s *roleSwitch) sendLast(ctx context.Context) error {
	snapshot := SnapshotPrefix + s.id
	last, err := s.lastSession(snapshot)
	if err != nil {
		return err
	}
	v, err := s.f.runs.Survey(ctx, last)
	if err != nil {
		return err
	}
	var missing []string
	for _, d := range v.DatasetsFor(s.f.t.Name) {
		if d.Get("readonly") != "on" {
			return fmt.Errorf("%s is writable", d.Name)
		}
		if !slices.ContainsFunc(d.Snapshots(), func(have zfs.Version) bool { return have.Name == snapshot }) {
			missing = append(missing, d.Name+"@"+snapshot)
		}
	}
	if len(missing) > 0 {
		if err := hosts.Run(ctx, s.f.session.Source, hosts.OpSnapshot, missing); err != nil {
			return err
		}
		if v, err = s.f.runs.Survey(ctx, last); err != nil {
			return err
		}
	}
	sent, err := s.f.runs.SendTo(ctx, last, v)
	for _, d := range sent.Datasets {
		if s.f.bytes += d.Bytes; err == nil {
			err = d.Err
		}
	}
	if err != nil {
		return err
	}
	for _, d := range v.DatasetsFor(s.f.t.Name) { // run recorded them, unless it was not permitted
		if copied := sent.Target.Find(s.f.t.Target.CopyOf(v.Root, d.Name)); copied != nil {
			if err := s.copyRecord(ctx, d, copied); err != nil {
				return err
			}
		}
	}
	return s.verify(ctx)
}

// lastSession returns a session that sends only to the target, in addition the snapshots of that name. It
// replaces no diverged copy, takes no other snapshot, and places no holds or bookmarks, which no later
// run would remove.
func (s *roleSwitch) lastSession(snapshot string) (*session.Session, error) {
	j := *s.f.session.Job
	t := *s.f.t.Target
	t.OnDivergence, t.Mirror, t.Snapshots = "", nil, replicate.TargetSnapshots{}
	j.Holds, j.Bookmarks = "none", "none"
	j.Targets, j.Snapshots.SnapshotLimits = []replicate.Target{t}, replicate.SnapshotLimits{}
	j.Snapshots.Adopt = append(slices.Clone(j.Snapshots.Adopt), snapshot)
	return s.f.session.With(&j)
}

// copyRecord copies the record of the source's properties from the source to the copy.
func (s *roleSwitch) copyRecord(ctx context.Context, d, copied *zfs.Dataset) error {
	o, known, err := replicate.Recorded(d)
	if err != nil {
		return err
	}
	origin := ""
	if known {
		if d.Name == s.f.root {
			o.Job, o.Target, o.Source = s.f.session.Job.Name, s.f.t.Target.Pair(), s.f.session.Source.At.String()
		}
		origin = o.Encode()
	}
	change := replicate.RecordChange(copied, origin, s.f.t.Target.SettingsOf(d, d.Name == s.f.root).Encode())
	if change == nil {
		return nil
	}
	return hosts.Run(ctx, s.f.t, hosts.OpSetProperties, *change)
}

// verify requires that the copy has the source's data.
func (s *roleSwitch) verify(ctx context.Context) error {
	if err := s.list(ctx); err != nil {
		return err
	}
	if newer := s.newer(); len(newer) > 0 {
		return fmt.Errorf("the copy lacks data of the source: %s", strings.Join(shorten(newer), ", "))
	}
	return nil
}

// newer lists what the source has and the copy has not.
func (s *roleSwitch) newer() (out []string) {
	for _, d := range s.reads.Datasets {
		copied := s.f.listed.Find(s.f.copyRoot + strings.TrimPrefix(d.Name, s.f.root))
		base, common := lastCommon(d, copied)
		if !common {
			out = append(out, d.Name+" (no common snapshot)")
			continue
		}
		latest := base
		for _, have := range d.Snapshots() {
			if have.CreateTXG > base.CreateTXG {
				out, latest = append(out, have.In(d.Name)), have
			}
		}
		if d.Modified() {
			out = append(out, "data written to "+d.Name+" after "+latest.Short())
		}
	}
	return out
}

// lastCommon returns the source's most recent snapshot that the copy has too. copied may be nil.
func lastCommon(d, copied *zfs.Dataset) (base zfs.Version, ok bool) {
	for _, v := range slices.Backward(d.Snapshots()) {
		if copied == nil {
			break
		}
		if _, ok = copied.SnapshotOf(v.GUID); ok {
			return v, true
		}
	}
	return base, false
}

// maxNewer limits the differences that a message lists.
const maxNewer = 10

func shorten(all []string) []string {
	if more := len(all) - maxNewer; more > 0 {
		return append(slices.Clone(all[:maxNewer]), fmt.Sprintf("and %d more", more))
	}
	return all
}
