package runner

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/zfs"
)

// SwitchSchema names the JSON format of a switch.
const SwitchSchema = "zxfer.replicate.switch/v1"

// switchPrefix is the name prefix of the snapshots that a switch takes of the read-only source. The
// ID of the fail over follows.
const switchPrefix = "zxfer-switch-"

// Switch swaps the roles of a job's source and a copy. The source becomes read-only, the last
// increment is sent, the copy becomes the source, and the source becomes its copy. At no time are
// both writable. After an interruption at any step, the same call completes it.
func (r *Runner) Switch(ctx context.Context, j *replicate.Job, file *JobFile, o FailoverOptions) (*Failover, error) {
	return r.failover(ctx, j, o, SwitchSchema, func(ctx context.Context, f *failover) error {
		s := &roleSwitch{failover: f, file: file}
		if o.Abort {
			return s.abort(ctx)
		}
		return s.run(ctx)
	})
}

// roleSwitch is a planned fail over.
type roleSwitch struct {
	*failover
	file   *JobFile
	id     string
	reads  zfs.Listing // the source and its descendants
	v      *replicate.Survey
	before string // ID of the role that the switch replaces
}

func (s *roleSwitch) run(ctx context.Context) error {
	if err := s.permit(decide.SwitchEvent); err != nil {
		return err
	}
	if s.sourceUnknown {
		return fault.Refusef("run it on the source's host: "+s.command("switch "+s.job.Name), "job %q: this host does not know the address of the source", s.job.Name)
	}
	if err := cmp.Or(s.requireOwner(ctx, s.t, s.copyRoot), s.requireOwner(ctx, s.jobRun.source, s.root)); err != nil {
		return err
	}
	if err := s.planFile(); err != nil {
		return err
	}
	if err := s.list(ctx); err != nil {
		return err
	}
	if err := s.checkRaw(ctx); err != nil {
		return err
	}
	switch s.state {
	case decide.Normal, decide.Handover:
		return s.handOver(ctx)
	default: // the copy is the source already
		return s.demote(ctx)
	}
}

// list lists both sides with all versions.
func (s *roleSwitch) list(ctx context.Context) (err error) {
	s.jobRun.source.host.Sync(ctx, s.root)
	if s.v, err = s.jobRun.survey(ctx); err != nil {
		return err
	}
	s.reads = *s.v.Source
	s.reads.Datasets = s.v.DatasetsFor(s.t.name)
	if err = s.listCopy(ctx); err != nil {
		return err
	}
	s.freed = map[string]bool{}
	a, errA := s.jobRun.source.host.Facts(ctx)
	b, errB := s.t.host.Facts(ctx)
	if errA != nil || errB != nil {
		return cmp.Or(errA, errB)
	}
	if same, _ := hosts.SameKernel(a, b); same {
		for _, d := range s.v.All {
			if d.Get("mounted") == "yes" {
				s.freed[d.Get("mountpoint")] = true
			}
		}
	}
	return nil
}

// rawBackFixed is the first release in which raw increments sent back do not make their source
// unmountable.
//
// https://github.com/openzfs/zfs/issues/10523
var rawBackFixed = zfs.Release{2, 1, 3}

// checkRaw refuses a switch after which encrypted data could not be sent back safely.
func (s *roleSwitch) checkRaw(ctx context.Context) error {
	if !slices.ContainsFunc(s.reads.Datasets, (*zfs.Dataset).Encrypted) || s.t.transfer.Decrypt {
		return nil
	}
	for _, side := range []*side{s.jobRun.source, s.t} {
		f, err := side.host.Facts(ctx)
		if err != nil {
			return err
		}
		if v, known := zfs.ParseRelease(f.ZFS); known && v.Before(rawBackFixed) {
			return fault.Refusef("upgrade OpenZFS there to 2.1.3 or newer",
				"%s: OpenZFS %s may make encrypted datasets unmountable if raw increments are sent back to them (openzfs#10523)", side.host.Label(), v)
		}
	}
	return nil
}

// handOver plans and carries out a switch from the start, or from the handover.
func (s *roleSwitch) handOver(ctx context.Context) error {
	s.id, s.before = newRoleID(), s.source.Role.ID
	if s.state == decide.Handover {
		s.id, s.before = s.source.Role.ID, s.source.Role.Before
	}
	if err := s.checkVolumes(ctx); err != nil {
		return err
	}
	// A preliminary plan finds most refusals before anything changes.
	s.willRecord = true
	if err := s.planTakeover(ctx, s.sourceRecord); err != nil {
		return err
	}
	takeover := s.result.Steps
	s.result.Steps = nil
	s.planHandover()
	s.noteOthers()
	if s.DryRun {
		s.planCopyRole()
		s.result.Steps = append(s.result.Steps, takeover...)
		s.planEnd()
		return nil
	}
	if err := s.carryOut(ctx); err != nil { // the copy may have new datasets now
		return err
	}
	s.willRecord = false
	s.planCopyRole()
	if err := s.planTakeover(ctx, recorded); err != nil {
		return err
	}
	s.planEnd()
	return s.carryOut(ctx)
}

// planCopyRole plans the point of no return: the copy becomes the source.
func (s *roleSwitch) planCopyRole() {
	s.target.Role = s.role(zfs.RoleSource)
	s.set(s.t, s.copyRoot, map[string]string{zfs.RoleProperty: s.target.Role.String()})
}

// planEnd plans the steps after the copy is writable: the source becomes its copy.
func (s *roleSwitch) planEnd() {
	s.planStandby()
	s.planCleanup()
	s.addFileStep()
}

// role returns the role of a side in this switch.
func (s *roleSwitch) role(kind zfs.RoleKind) zfs.Role {
	r := s.newRole(kind, s.before)
	r.ID = s.id
	if s.state == decide.Handover {
		r.Since = s.source.Role.Since
	}
	return r
}

// sourceRecord returns the properties of the source of a copy: the recorded ones if the source is
// read-only because of the handover.
func (s *roleSwitch) sourceRecord(copied *zfs.Dataset) (o zfs.Origin, known bool, err error) {
	d := s.reads.Find(s.root + strings.TrimPrefix(copied.Name, s.copyRoot))
	if d == nil {
		return o, false, nil
	}
	if s.state != decide.Normal {
		if o, known, err = recorded(d); known || err != nil || d.Name == s.root {
			return o, known, err
		}
	}
	return zfs.OriginOf(d, d.Name == s.root), true, nil
}

// checkVolumes refuses volumes that are in use, because their users would get errors.
func (s *roleSwitch) checkVolumes(ctx context.Context) error {
	var paths []string
	for _, d := range s.reads.Datasets {
		if d.Type == zfs.Volume {
			paths = append(paths, zfs.DeviceOf(d.Name))
		}
	}
	if len(paths) == 0 || s.jobRun.source.host.Require(ctx, hosts.OpInUse) != nil {
		return nil
	}
	found, err := hosts.Call(ctx, s.jobRun.source, hosts.OpInUse, paths)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if why := found[path]; why != "" {
			return fault.Refusef("stop its user; lsblk and fuser -vm show it", "%s: %s %s", s.jobRun.source.host.Label(), path, why)
		}
	}
	return nil
}

// planHandover plans the steps until the last increment has arrived.
func (s *roleSwitch) planHandover() {
	src := s.jobRun.source
	if s.state == decide.Normal {
		s.add(src, "run the job while the source is writable", s.runJob)
		for _, d := range s.reads.Datasets {
			if o := zfs.OriginOf(d, d.Name == s.root); d.Name == s.root || len(o.Set) > 0 {
				s.set(src, d.Name, map[string]string{zfs.OriginProperty: o.Encode()})
			} else if d.Properties[zfs.OriginProperty].Local() {
				s.forget(src, d.Name)
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
	src := s.jobRun.source
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
	stop := "stop its users, then run the same command again; list them with: " + zfs.CommandLine([]string{"fuser", "-vm", s.v.All[0].Get("mountpoint")})
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
		if d.Type != zfs.Filesystem {
			continue
		}
		if err := hosts.Run(ctx, s.jobRun.source, hosts.OpUnmount, d.Name); err != nil {
			return err
		}
	}
	return nil
}

// runJob runs the job once, without a freeze: the applications are stopped. The copy must be complete
// after it; other targets do not matter.
func (s *roleSwitch) runJob(ctx context.Context) error {
	j := *s.job
	j.Freeze = nil
	again, err := s.newRun(&j, s.store)
	if err != nil {
		return err
	}
	run, err := again.complete(ctx)
	if run != nil {
		for _, t := range run.Targets {
			if t.Target != s.t.name {
				continue
			}
			s.result.Bytes += t.Bytes
			if t.Outcome != outcome.Done && t.Outcome != outcome.UpToDate {
				return fault.Failf(cmp.Or(t.Hint, s.command("log "+s.job.Name)), "the run did not complete the copy: %s", cmp.Or(t.Error, run.FirstError(), t.Outcome))
			}
			return nil
		}
	}
	return cmp.Or(err, fmt.Errorf("the run did not reach target %s", s.t.name))
}

// sendLast takes the last snapshots of the read-only source and sends them. It fails unless the
// copy then has all data of the source.
func (s *roleSwitch) sendLast(ctx context.Context) error {
	snapshot := switchPrefix + s.id
	w, err := s.lastRun(snapshot)
	if err != nil {
		return err
	}
	v, err := w.survey(ctx)
	if err != nil {
		return err
	}
	var missing []string
	for _, d := range v.DatasetsFor(s.t.name) {
		if d.Get("readonly") != "on" {
			return fmt.Errorf("%s is writable", d.Name)
		}
		if !slices.ContainsFunc(d.Snapshots(), func(have zfs.Version) bool { return have.Name == snapshot }) {
			missing = append(missing, d.Name+"@"+snapshot)
		}
	}
	if len(missing) > 0 {
		if err := hosts.Run(ctx, s.jobRun.source, hosts.OpSnapshot, missing); err != nil {
			return err
		}
		if v, err = w.survey(ctx); err != nil {
			return err
		}
	}
	b := w.send(ctx, v)[0]
	for _, d := range b.result.Datasets {
		s.result.Bytes += d.Bytes
		b.err = cmp.Or(b.err, d.Err)
	}
	if b.err != nil {
		return b.err
	}
	for _, d := range v.DatasetsFor(s.t.name) { // run recorded them, unless it was not permitted
		if copied := b.result.Target.Find(s.t.target.CopyOf(v.Root, d.Name)); copied != nil {
			if err := s.copyRecord(ctx, d, copied); err != nil {
				return err
			}
		}
	}
	return s.verify(ctx)
}

// lastRun returns a run that sends only to the target, in addition the snapshots of that name. It
// replaces no diverged copy and takes no other snapshot.
func (s *roleSwitch) lastRun(snapshot string) (*jobRun, error) {
	j := *s.job
	t := *s.t.target
	t.OnDivergence, t.Mirror, t.Snapshots = "", nil, replicate.TargetSnapshots{}
	j.Targets, j.Snapshots.SnapshotLimits = []replicate.Target{t}, replicate.SnapshotLimits{}
	j.Snapshots.Adopt = append(slices.Clone(j.Snapshots.Adopt), snapshot)
	return s.newRun(&j, s.store)
}

// copyRecord copies the source's record of its own properties to the copy.
func (s *roleSwitch) copyRecord(ctx context.Context, d, copied *zfs.Dataset) error {
	o, known, err := recorded(d)
	if err != nil {
		return err
	}
	was := copied.Properties[zfs.OriginProperty]
	switch {
	case known && d.Name == s.root:
		o.Job, o.Target, o.Source = s.job.Name, s.t.name, s.jobRun.source.at.String()
	case !known && was.Local():
		return hosts.Run(ctx, s.t, hosts.OpSetProperties, zfs.PropertyChange{Dataset: copied.Name, Revert: []string{zfs.OriginProperty}})
	case !known:
		return nil
	}
	if was.Local() && was.Value == o.Encode() {
		return nil
	}
	return hosts.Run(ctx, s.t, hosts.OpSetProperties, zfs.PropertyChange{Dataset: copied.Name, Set: map[string]string{zfs.OriginProperty: o.Encode()}})
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

// noteOthers notes what the switch does not cover.
func (s *roleSwitch) noteOthers() {
	for _, t := range s.targets {
		if t != s.t {
			s.note("target %s gets no new snapshots until you switch back, or add it to %s", t.name, s.result.ReverseName)
		}
	}
	var outside []string
	for _, d := range s.v.All {
		if s.reads.Find(d.Name) == nil {
			outside = append(outside, d.Name)
		}
	}
	if len(outside) > 0 {
		s.note("the copy does not have %s: it becomes read-only and is unmounted", strings.Join(shorten(outside), ", "))
	}
}

// copyEndpoint returns the address of the copy.
func (f *failover) copyEndpoint() endpoint.Endpoint {
	return endpoint.Endpoint{Host: f.t.at.Host, Name: f.copyRoot}
}
