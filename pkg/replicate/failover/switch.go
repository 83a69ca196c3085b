package failover

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/zfs"
)

// SnapshotPrefix is the name prefix of the snapshots that a switch takes of the read-only source. The
// ID of the fail over follows.
const SnapshotPrefix = "zxfer-switch-"

// switchSnapshot matches the names of these snapshots, but no others with the prefix.
var switchSnapshot = regexp.MustCompile(`^` + SnapshotPrefix + `[0-9a-f]{16}$`)

// roleSwitch is a planned switch.
type roleSwitch struct {
	f      *failover
	id     string
	reads  zfs.Listing // the source and its descendants
	v      *decision.Survey
	before string // ID of the role that the switch replaces
	// compared are the common snapshots whose block sizes were compared, by GUID.
	compared map[uint64]bool
}

func (s *roleSwitch) run(ctx context.Context) error {
	f := s.f
	if f.completed() { // only the answer to the last change was lost
		f.session.State.Switch = ""
		return f.session.Store.Save(f.session.State)
	}
	if err := f.permit(decide.SwitchEvent); err != nil {
		return err
	}
	if f.sourceUnknown {
		return fault.Refusef("run it on the source's host: "+f.session.Env.Command("switch "+f.session.Job.Name), "job %q: this host does not know the address of the source", f.session.Job.Name)
	}
	if _, err := jobfile.From(f.session.Written, f.nextPlace()); err != nil {
		return err
	}
	if err := f.checkOtherCopies(ctx); err != nil {
		return err
	}
	if err := requireOwner(ctx, f.t, f.copyRoot); err != nil {
		return err
	}
	if err := requireOwner(ctx, f.session.Source, f.root); err != nil {
		return err
	}
	if err := s.list(ctx); err != nil {
		return err
	}
	if err := s.checkRaw(ctx); err != nil {
		return err
	}
	switch f.state {
	case decide.Normal, decide.Handover:
		return s.handOver(ctx)
	default: // the copy is the source already
		return s.demote(ctx)
	}
}

// list lists both sides with all versions.
func (s *roleSwitch) list(ctx context.Context) (err error) {
	s.f.session.Source.Host.Sync(ctx, s.f.root)
	if s.v, err = s.f.runs.Survey(ctx, s.f.session); err != nil {
		return err
	}
	s.reads = *s.v.Source
	s.reads.Datasets = s.v.DatasetsFor(s.f.t.Name)
	if !s.f.session.Job.Recursive { // descendants become read-only, and are unmounted, with the source
		below, err := s.f.session.Source.List(ctx, hosts.ListQuery{Dataset: s.f.root, Recursive: true, NoAncestors: true})
		if err != nil {
			return err
		}
		s.v.All = below.Datasets
	}
	if s.f.options.TargetLost {
		return nil
	}
	if err = s.f.listCopy(ctx); err != nil {
		return err
	}
	s.f.freed = map[string]bool{}
	a, err := s.f.session.Source.Host.Facts(ctx)
	if err != nil {
		return err
	}
	b, err := s.f.t.Host.Facts(ctx)
	if err != nil {
		return err
	}
	if same, _ := hosts.SameKernel(a, b); same {
		for _, d := range s.v.All {
			if d.Get("mounted") == "yes" {
				s.f.freed[d.Get("mountpoint")] = true
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
	if !slices.ContainsFunc(s.reads.Datasets, (*zfs.Dataset).Encrypted) || s.f.t.Transfer.Decrypt {
		return nil
	}
	for _, side := range []*session.Side{s.f.session.Source, s.f.t} {
		f, err := side.Host.Facts(ctx)
		if err != nil {
			return err
		}
		if v, known := zfs.ParseRelease(f.ZFS); known && v.Before(rawBackFixed) {
			return fault.Refusef("upgrade OpenZFS there to 2.1.3 or newer",
				"%s: OpenZFS %s may make encrypted datasets unmountable if raw increments are sent back to them (openzfs#10523)", side.Host.Label(), v)
		}
	}
	return nil
}

// handOver plans and carries out a switch from the start, or from the handover.
func (s *roleSwitch) handOver(ctx context.Context) error {
	s.id, s.before = newRoleID(), s.f.source.Role.ID
	if s.f.state == decide.Handover {
		s.id, s.before = s.f.source.Role.ID, s.f.source.Role.Before
	}
	if err := s.checkVolumes(ctx); err != nil {
		return err
	}
	// A preliminary plan finds most refusals before anything changes.
	s.f.willRecord = true
	if err := s.f.planTakeover(ctx, s.sourceRecord); err != nil {
		return err
	}
	if s.f.state == decide.Normal {
		if err := s.checkBlockSizes(ctx); err != nil {
			return err
		}
	}
	takeover, next := s.f.plan, s.f.next
	s.f.plan, s.f.next = steps{}, nil
	s.planHandover()
	s.noteOthers()
	s.noteProperties(ctx)
	if s.f.options.DryRun {
		s.planCopyRole()
		s.f.plan.all, s.f.next = append(s.f.plan.all, takeover.all...), append(s.f.next, next...)
		s.planEnd()
		return nil
	}
	if err := s.f.carryOut(ctx); err != nil { // the copy may have new datasets now
		return err
	}
	s.f.willRecord = false
	s.planCopyRole()
	if err := s.f.planTakeover(ctx, replicate.Recorded); err != nil {
		return err
	}
	s.planEnd()
	return s.finish(ctx)
}

// planCopyRole plans that the copy becomes the source. After that step, a switch cannot be aborted.
func (s *roleSwitch) planCopyRole() {
	s.f.restrict()
	s.f.target.Role = s.role(zfs.RoleSource)
	s.f.plan.set(s.f.t, s.f.copyRoot, map[string]string{zfs.RoleProperty: s.f.target.Role.String()})
}

// planEnd plans the steps after the copy is mounted: the source becomes its copy. Its role is the last change: from then
// on, the same command switches back.
func (s *roleSwitch) planEnd() {
	s.planUnmountable()
	s.planFlags()
	s.planOthers()
	s.planCleanup()
	if s.f.waits {
		s.f.note("%s becomes a copy when the new source is mounted; until then, no run is permitted", s.f.session.Job.Source)
		return
	}
	role := s.f.target.Role
	role.Kind = zfs.RoleStandby
	s.f.plan.set(s.f.session.Source, s.f.root, map[string]string{zfs.RoleProperty: role.String()})
	last := s.f.plan.all[len(s.f.plan.all)-1]
	set := last.do
	last.do = func(ctx context.Context) error {
		if err := s.f.expect(role.ID); err != nil {
			return err
		}
		return set(ctx)
	}
}

// planOthers plans to move the holds of the other targets from the source to the new source, as far as it has their
// common snapshots.
func (s *roleSwitch) planOthers() {
	f := s.f
	for _, t := range f.session.Targets {
		if t == f.t {
			continue
		}
		bases, release, lacking := map[uint64]bool{}, []string{}, 0
		for _, d := range s.reads.Datasets {
			known := f.session.State.Datasets[d.Name]
			if known == nil || known.Targets[t.Name] == nil || known.Targets[t.Name].BaseGUID == 0 {
				continue
			}
			a, copied := known.Targets[t.Name], f.listed.Find(f.copyRoot+strings.TrimPrefix(d.Name, f.root))
			if copied == nil {
				lacking++
			} else if _, has := copied.SnapshotOf(a.BaseGUID); !has {
				lacking++
			} else {
				base := "" // an interrupted switch may have dropped it from the records
				if v, has := d.SnapshotOf(a.BaseGUID); has && len(a.Held) > 0 {
					base, bases[a.BaseGUID] = v.In(d.Name), true
					release = append(release, base)
				}
				for _, h := range a.Held {
					if h.Source != "" && h.Source != base {
						bases[a.BaseGUID], release = true, append(release, h.Source)
					}
				}
			}
		}
		if lacking > 0 {
			f.note("target %s: its last common snapshot of %s is not on the new source: the next run sends from an older one, or refuses", t.Name, english.Plural(lacking, "dataset", ""))
		}
		if len(bases) == 0 {
			continue
		}
		tag := f.session.Job.Tag(t.Name)
		f.hold(f.t, tag, f.copies(), bases, func(names []string) {
			f.session.State.Turn(f.nextPlace(), f.session.Env.Now())
			f.session.State.MayHold(t.Name, names)
		})
		if len(release) > 0 {
			f.plan.add(f.session.Source, "release "+english.Plural(len(release), "hold", "")+" for target "+t.Name, func(ctx context.Context) error {
				return f.session.Source.Release(ctx, tag, release)
			})
		}
	}
}

// role returns the role of a side in this switch.
func (s *roleSwitch) role(kind zfs.RoleKind) zfs.Role {
	r := s.f.newRole(kind, s.before)
	r.ID = s.id
	if s.f.state == decide.Handover {
		r.Since = s.f.source.Role.Since
	}
	return r
}

// sourceRecord returns the properties of the source of a copy: the recorded ones if the source is
// read-only because of the handover.
func (s *roleSwitch) sourceRecord(copied *zfs.Dataset) (o zfs.Origin, known bool, err error) {
	d := s.reads.Find(s.f.root + strings.TrimPrefix(copied.Name, s.f.copyRoot))
	if d == nil {
		return o, false, nil
	}
	if s.f.state != decide.Normal {
		o, known, err = replicate.Recorded(d)
	}
	if err == nil && !known && (s.f.state == decide.Normal || d.Name != s.f.root) {
		o, known = zfs.OriginOf(d, d.Name == s.f.root), true
	}
	o.Settings = s.f.t.Target.SettingsOf(d, d.Name == s.f.root)
	return o, known, err
}

// checkVolumes refuses volumes that are in use, because their users would get errors.
func (s *roleSwitch) checkVolumes(ctx context.Context) error {
	var paths []string
	for _, d := range s.reads.Datasets {
		if d.Type == zfs.Volume {
			paths = append(paths, zfs.DeviceOf(d.Name))
		}
	}
	if len(paths) == 0 || s.f.session.Source.Host.Require(ctx, hosts.OpInUse) != nil {
		return nil
	}
	found, err := hosts.Call(ctx, s.f.session.Source, hosts.OpInUse, paths)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if why := found[path]; why != "" {
			return fault.Refusef("stop its user; lsblk and fuser -vm show it", "%s: %s %s", s.f.session.Source.Host.Label(), path, why)
		}
	}
	return nil
}

// noteOthers notes what the switch does not cover.
func (s *roleSwitch) noteOthers() {
	var outside []string
	for _, d := range s.v.All {
		if s.reads.Find(d.Name) == nil {
			outside = append(outside, d.Name)
		}
	}
	if len(outside) > 0 {
		s.f.note("the copy does not have %s: it becomes read-only and is unmounted", strings.Join(shorten(outside), ", "))
	}
}

// noteProperties lists the properties of the source that are neither recorded nor set on the copy, such as sync, atime
// and user properties. The administrator decides on them.
func (s *roleSwitch) noteProperties(ctx context.Context) {
	var names, copies []string
	for _, d := range s.reads.Datasets {
		names, copies = append(names, d.Name), append(copies, s.f.copyRoot+strings.TrimPrefix(d.Name, s.f.root))
	}
	here, err := s.f.session.Source.Host.Properties(ctx, names, nil)
	there := map[string]map[string]zfs.Property{}
	if err == nil {
		there, err = s.f.t.Host.Properties(ctx, copies, nil)
	}
	if err != nil {
		s.f.note("the properties that the new source lacks are unknown: %v", err)
		return
	}
	recorded := slices.Concat(zfs.SettingsNames(), zfs.OriginProperties(), s.f.t.Target.Properties.Exclude)
	listed, noted := s.f.listed.ByName(), 0
	for i, d := range s.reads.Datasets {
		lacks := map[string]string{}
		for name, p := range here[d.Name] {
			_, own := s.f.t.Target.Properties.Set[name]
			if own || slices.Contains(recorded, name) || zfs.EncryptionBound(name) || zfs.ReadOnly(name) || strings.HasPrefix(name, "zxfer:") || !p.Local() && p.Source != "received" {
				continue
			}
			have, set := there[copies[i]][name]
			if c := listed[copies[i]]; c != nil && !set {
				have, set = c.Properties[name]
			}
			if !set || have.Value != p.Value {
				lacks[name] = p.Value
			}
		}
		if noted += min(len(lacks), 1); len(lacks) > 0 && noted <= maxNoted {
			s.f.note("%s: not set on the new source: %s; its source has them", copies[i], zfs.JoinValues(lacks))
		}
	}
	if noted > maxNoted {
		s.f.note("not listed: %s with other properties than the new source", english.Plural(noted-maxNoted, "dataset", ""))
	}
}

// maxNoted is the number of datasets whose properties noteProperties lists.
const maxNoted = 20
