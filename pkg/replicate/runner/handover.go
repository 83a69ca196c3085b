package runner

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
	"zxfer/pkg/zfs"
)

// planHandover plans the steps until the last increment has arrived.
func (s *roleSwitch) planHandover() {
	src := s.jobRun.session.Source
	if s.state == decide.Normal {
		s.add(src, "run the job while the source is writable", s.runJob)
		s.add(s.t, "compare block sizes, so that increments back lose no data", s.checkBlockSizesNow)
		for _, d := range s.reads.Datasets {
			if o := zfs.OriginOf(d, d.Name == s.root); d.Name == s.root || len(o.Set) > 0 {
				s.set(src, d.Name, map[string]string{zfs.OriginProperty: o.Encode()})
			} else {
				s.forget(src, d)
			}
		}
		s.set(src, s.root, map[string]string{zfs.RoleProperty: s.role(zfs.RoleHandover).String()})
	}
	s.planReadOnly(s.state == decide.Normal)
	s.add(src, fmt.Sprintf("zfs snapshot @%s of %s, and send it to %s", switchPrefix+s.id, english.Plural(len(s.reads.Datasets), "dataset", ""), s.result.Copy), s.sendLast)
}

// planReadOnly plans to unmount the source and to make it read-only, in this order: zfs set
// readonly=on fails halfway while a program has a file open for writing. If the source is busy, and
// undo is set, it gets its role back.
func (s *roleSwitch) planReadOnly(undo bool) {
	src := s.jobRun.session.Source
	if slices.ContainsFunc(s.v.All, func(d *zfs.Dataset) bool { return d.Get("mounted") == "yes" }) {
		s.add(src, fmt.Sprintf("zfs unmount %s with its descendants", s.root), func(ctx context.Context) error { return s.unmountOrUndo(ctx, undo) })
	}
	for _, d := range s.reads.Datasets {
		if p := d.Properties["readonly"]; d.Name == s.root && p.Value != "on" || d.Name != s.root && p.Value != "on" && (p.Local() || p.Source == "received") {
			s.set(src, d.Name, map[string]string{"readonly": "on"})
		}
	}
}

// unmountOrUndo unmounts the source. If it is busy, and undo is set, it removes the role and mounts
// what was unmounted.
func (s *roleSwitch) unmountOrUndo(ctx context.Context, undo bool) error {
	err := s.unmountSource(ctx)
	if err == nil || ctx.Err() != nil {
		return err
	}
	stop := "stop its users, then run the same command again; list them with: " + s.jobRun.session.Source.Host.Command("fuser", "-vm", s.v.All[0].Get("mountpoint"))
	if !undo {
		return fault.Failf(stop, "%w", err)
	}
	if failed := s.undo(context.WithoutCancel(ctx)); failed != nil {
		return fault.Failf("to give the source its role back: "+s.again("--abort"), "%w; the handover is recorded: %w", err, failed)
	}
	for _, step := range s.result.Steps {
		step.Done = false
	}
	return fault.Failf(stop, "%w; the source is writable again", err)
}

// unmountSource unmounts the source's filesystems, descendants first.
func (s *roleSwitch) unmountSource(ctx context.Context) error {
	for _, d := range slices.Backward(s.v.All) {
		if d.Type != zfs.Filesystem || d.Get("mounted") == "no" {
			continue
		}
		if err := hosts.Run(ctx, s.jobRun.session.Source, hosts.OpUnmount, d.Name); err != nil {
			return err
		}
	}
	return nil
}

// runJob runs the job once, without a freeze: the applications are stopped. The copy must be complete
// after it; other targets do not matter.
func (s *roleSwitch) runJob(ctx context.Context) error {
	j := *s.session.Job
	j.Freeze = nil
	again, err := s.Env.Open(&j, s.session.Store)
	if err != nil {
		return err
	}
	run, err := complete(ctx, s.newPass(again, order{only: s.t.Name}))
	if run != nil {
		for _, t := range run.Targets {
			if t.Target != s.t.Name {
				continue
			}
			s.result.Bytes += t.Bytes
			if t.Outcome != outcome.Done && t.Outcome != outcome.UpToDate {
				return fault.Failf(cmp.Or(t.Hint, s.Env.Command("log "+s.session.Job.Name)), "the run did not complete the copy: %s", cmp.Or(t.Error, run.FirstError(), t.Outcome))
			}
			return nil
		}
	}
	return cmp.Or(err, fmt.Errorf("the run did not reach target %s", s.t.Name))
}

// sendLast takes the last snapshots of the read-only source and sends them. It fails unless the
// copy then has all data of the source.
func (s *roleSwitch) sendLast(ctx context.Context) error {
	snapshot := switchPrefix + s.id
	last, err := s.lastRun(snapshot)
	if err != nil {
		return err
	}
	v, err := survey(ctx, last.s, last.rec.Started)
	if err != nil {
		return err
	}
	var missing []string
	for _, d := range v.DatasetsFor(s.t.Name) {
		if d.Get("readonly") != "on" {
			return fmt.Errorf("%s is writable", d.Name)
		}
		if !slices.ContainsFunc(d.Snapshots(), func(have zfs.Version) bool { return have.Name == snapshot }) {
			missing = append(missing, d.Name+"@"+snapshot)
		}
	}
	if len(missing) > 0 {
		if err := hosts.Run(ctx, s.jobRun.session.Source, hosts.OpSnapshot, missing); err != nil {
			return err
		}
		if v, err = survey(ctx, last.s, last.rec.Started); err != nil {
			return err
		}
	}
	b := sendAll(ctx, last, v, nil, nil, func() error { return nil })[0]
	for _, d := range b.result.Datasets {
		s.result.Bytes += d.Bytes
		b.err = cmp.Or(b.err, d.Err)
	}
	if b.err != nil {
		return b.err
	}
	for _, d := range v.DatasetsFor(s.t.Name) { // run recorded them, unless it was not permitted
		if copied := b.result.Target.Find(s.t.Target.CopyOf(v.Root, d.Name)); copied != nil {
			if err := s.copyRecord(ctx, d, copied); err != nil {
				return err
			}
		}
	}
	return s.verify(ctx)
}

// lastRun returns a run that sends only to the target, in addition the snapshots of that name. It
// replaces no diverged copy, takes no other snapshot, and places no holds or bookmarks, which no later
// run would remove.
func (s *roleSwitch) lastRun(snapshot string) (*pass, error) {
	j := *s.session.Job
	t := *s.t.Target
	t.OnDivergence, t.Mirror, t.Snapshots = "", nil, replicate.TargetSnapshots{}
	j.Holds, j.Bookmarks = "none", "none"
	j.Targets, j.Snapshots.SnapshotLimits = []replicate.Target{t}, replicate.SnapshotLimits{}
	j.Snapshots.Adopt = append(slices.Clone(j.Snapshots.Adopt), snapshot)
	last, err := s.Env.Open(&j, s.session.Store)
	if err != nil {
		return nil, err
	}
	return s.newPass(last, order{}), nil
}

// copyRecord copies the record of the source's properties from the source to the copy.
func (s *roleSwitch) copyRecord(ctx context.Context, d, copied *zfs.Dataset) error {
	o, known, err := recorded(d)
	if err != nil {
		return err
	}
	origin := ""
	if known {
		if d.Name == s.root {
			o.Job, o.Target, o.Source = s.session.Job.Name, s.t.Name, s.jobRun.session.Source.At.String()
		}
		origin = o.Encode()
	}
	change := recordChange(copied, origin, settingsOf(s.t.Target, d, d.Name == s.root).Encode())
	if change == nil {
		return nil
	}
	return hosts.Run(ctx, s.t, hosts.OpSetProperties, *change)
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
		copied := s.listed.Find(s.copyRoot + strings.TrimPrefix(d.Name, s.root))
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
