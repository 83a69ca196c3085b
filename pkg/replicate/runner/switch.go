package runner

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// SwitchSchema names the JSON format of a switch.
const SwitchSchema = "zxfer.replicate.switch/v1"

// switchPrefix is the name prefix of the snapshots that a switch takes of the read-only source. The
// ID of the fail over follows.
const switchPrefix = "zxfer-switch-"

// switchSnapshot matches the names of these snapshots, but no others with the prefix.
var switchSnapshot = regexp.MustCompile(`^` + switchPrefix + `[0-9a-f]{16}$`)

// Switch swaps the roles of a job's source and a copy. The source becomes read-only, the last
// increment is sent, the copy becomes the source, and the source becomes its copy. At no time are
// both writable. After an interruption at any step, the same call completes it.
func (r *Runner) Switch(ctx context.Context, j *replicate.Job, file *JobFile, o FailoverOptions) (*Failover, error) {
	if p, err := statedir.Paused(r.Env.StateDir, j.Name, r.Env.Now()); !o.DryRun && !o.Abort && (err != nil || p.State(r.Env.Now()).Active()) {
		if err == nil {
			err = p.Refusal(j.Name, r.Env.ResumeCommand(j, p), "", session.Stamp)
		}
		return nil, err
	}
	r.IgnorePause = true // a closed bandwidth window does not stop a switch
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
	v      *decision.Survey
	before string // ID of the role that the switch replaces
	// compared are the common snapshots whose block sizes were compared, by GUID.
	compared map[uint64]bool
}

func (s *roleSwitch) run(ctx context.Context) error {
	if err := s.permit(decide.SwitchEvent); err != nil {
		return err
	}
	if s.sourceUnknown {
		return fault.Refusef("run it on the source's host: "+s.Env.Command("switch "+s.session.Job.Name), "job %q: this host does not know the address of the source", s.session.Job.Name)
	}
	if err := cmp.Or(s.checkOtherCopies(ctx), s.requireOwner(ctx, s.t, s.copyRoot), s.requireOwner(ctx, s.jobRun.session.Source, s.root)); err != nil {
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
	s.jobRun.session.Source.Host.Sync(ctx, s.root)
	if s.v, err = survey(ctx, s.session, s.Env.Now()); err != nil {
		return err
	}
	s.reads = *s.v.Source
	s.reads.Datasets = s.v.DatasetsFor(s.t.Name)
	if !s.session.Job.Recursive { // descendants become read-only, and are unmounted, with the source
		below, err := s.jobRun.session.Source.List(ctx, hosts.ListQuery{Dataset: s.root, Recursive: true, NoAncestors: true})
		if err != nil {
			return err
		}
		s.v.All = below.Datasets
	}
	if s.TargetLost {
		return nil
	}
	if err = s.listCopy(ctx); err != nil {
		return err
	}
	s.freed = map[string]bool{}
	a, errA := s.jobRun.session.Source.Host.Facts(ctx)
	b, errB := s.t.Host.Facts(ctx)
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
	if !slices.ContainsFunc(s.reads.Datasets, (*zfs.Dataset).Encrypted) || s.t.Transfer.Decrypt {
		return nil
	}
	for _, side := range []*side{s.jobRun.session.Source, s.t} {
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
	if s.state == decide.Normal {
		if err := s.checkBlockSizes(ctx); err != nil {
			return err
		}
	}
	takeover, next := s.result.Steps, s.result.Next
	s.result.Steps, s.result.Next = nil, []string{}
	s.planHandover()
	s.noteOthers()
	s.noteProperties(ctx)
	if s.DryRun {
		s.planCopyRole()
		s.result.Steps, s.result.Next = append(s.result.Steps, takeover...), append(s.result.Next, next...)
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

// planCopyRole plans that the copy becomes the source. After that step, a switch cannot be aborted.
func (s *roleSwitch) planCopyRole() {
	s.restrict()
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
		o, known, err = recorded(d)
	}
	if err == nil && !known && (s.state == decide.Normal || d.Name != s.root) {
		o, known = zfs.OriginOf(d, d.Name == s.root), true
	}
	o.Settings = settingsOf(s.t.Target, d, d.Name == s.root)
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
	if len(paths) == 0 || s.jobRun.session.Source.Host.Require(ctx, hosts.OpInUse) != nil {
		return nil
	}
	found, err := hosts.Call(ctx, s.jobRun.session.Source, hosts.OpInUse, paths)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if why := found[path]; why != "" {
			return fault.Refusef("stop its user; lsblk and fuser -vm show it", "%s: %s %s", s.jobRun.session.Source.Host.Label(), path, why)
		}
	}
	return nil
}

// noteOthers notes what the switch does not cover.
func (s *roleSwitch) noteOthers() {
	for _, t := range s.session.Targets {
		if t != s.t {
			s.note("target %s gets no new snapshots until you switch back, or add it to %s", t.Name, s.result.ReverseName)
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

// noteProperties lists the properties of the source that are neither recorded nor set on the copy, such as sync, atime
// and user properties. The administrator decides on them.
func (s *roleSwitch) noteProperties(ctx context.Context) {
	var names, copies []string
	for _, d := range s.reads.Datasets {
		names, copies = append(names, d.Name), append(copies, s.copyRoot+strings.TrimPrefix(d.Name, s.root))
	}
	here, err := s.jobRun.session.Source.Host.Properties(ctx, names, nil)
	there, failed := s.t.Host.Properties(ctx, copies, nil)
	if err = cmp.Or(err, failed); err != nil {
		s.note("the properties that the new source lacks are unknown: %v", err)
		return
	}
	recorded := slices.Concat(zfs.SettingsNames(), zfs.OriginProperties(), s.t.Target.Properties.Exclude)
	listed, noted := s.listed.ByName(), 0
	for i, d := range s.reads.Datasets {
		lacks := map[string]string{}
		for name, p := range here[d.Name] {
			_, own := s.t.Target.Properties.Set[name]
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
			s.note("%s: not set on the new source: %s; its source has them", copies[i], zfs.JoinValues(lacks))
		}
	}
	if noted > maxNoted {
		s.note("not listed: %s with other properties than the new source", english.Plural(noted-maxNoted, "dataset", ""))
	}
}

// maxNoted is the number of datasets whose properties noteProperties lists.
const maxNoted = 20

// copyEndpoint returns the address of the copy.
func (f *failover) copyEndpoint() endpoint.Endpoint {
	return endpoint.Endpoint{Host: f.t.At.Host, Name: f.copyRoot}
}
