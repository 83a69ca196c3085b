package runner

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
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

// FailoverOptions are the options of promote and switch.
type FailoverOptions struct {
	Target     string // name of the target; "" if the job has one
	Mountpoint string // of the copy's root instead of the recorded one; "none" for none
	DryRun     bool
	// SourceAlive promotes although the source can be reached. Then both sides are writable.
	SourceAlive bool
	Abort       bool // ends a switch before the copy becomes the source
	TargetLost  bool // aborts without the target, which cannot be reached
	Rollback    bool // destroys what the former source has more than the copy
	Rotate      bool // renames the former source if it has more than the copy
	// SourceUnknown reports that the job comes from a record on the copy (JobOfCopy).
	SourceUnknown bool
}

// Failover is the plan of a change of roles, and its result.
type Failover struct {
	Schema string `json:"schema"`
	Job    string `json:"job"`
	Target string `json:"target"`
	// Source and Copy are the datasets before the change, "[[user@]host:]dataset".
	Source string          `json:"source"`
	Copy   string          `json:"copy"`
	State  decide.Roles    `json:"state"` // before the command
	Steps  []*FailoverStep `json:"steps"`
	// Bytes is the number of bytes that the command sent from the source to the copy.
	Bytes uint64 `json:"bytes"`
	// ReverseName is the job in the other direction, "" if it is not known. ReverseText is its
	// [[job]] table if the job file does not have it.
	ReverseName string   `json:"reverse_job,omitempty"`
	ReverseText string   `json:"reverse_text,omitempty"`
	Notes       []string `json:"notes"`
	Next        []string `json:"next"` // commands left to the user
	DryRun      bool     `json:"dry_run"`
	outcome.Conclusion
}

// FailoverStep is one change. Every step may be repeated.
type FailoverStep struct {
	Host string `json:"host,omitempty"` // "" = the job file
	Text string `json:"text"`
	Done bool   `json:"done"`

	do func(context.Context) error
}

// failover is a change of roles of a pair: a job's source and one copy.
type failover struct {
	*jobRun
	FailoverOptions
	t              *side
	root, copyRoot string // datasets on the source and the target
	source, target observedSide
	sourceUnknown  bool // no address of the source is known on this host
	state          decide.Roles
	listed         zfs.Listing // the copy and its descendants
	// freed are mountpoints that the source leaves before the copy is mounted, if both are on one
	// computer.
	freed map[string]bool
	// willRecord reports that the copies get the records of the source that they lack.
	willRecord bool
	result     *Failover
}

// newFailover selects the target and observes both sides.
func (w *jobRun) newFailover(ctx context.Context, o FailoverOptions, sourceUnknown bool, schema string) (*failover, error) {
	f := &failover{jobRun: w, FailoverOptions: o, root: w.session.Source.At.Name, sourceUnknown: sourceUnknown}
	f.result = &Failover{Schema: schema, Job: w.session.Job.Name, Source: w.session.Job.Source, DryRun: o.DryRun, Steps: []*FailoverStep{}, Notes: []string{}, Next: []string{}}
	var names []string
	for _, t := range w.session.Targets {
		if names = append(names, t.Name); o.Target == "" && len(w.session.Targets) == 1 || t.Name == o.Target {
			f.t = t
		}
	}
	switch {
	case len(w.session.Targets) == 0:
		return f, fault.Usagef("", "job %q has no [[job.target]], so it has no copy", w.session.Job.Name)
	case f.t == nil && o.Target == "":
		return f, fault.Usagef("name one of them: "+strings.Join(names, ", "), "job %q has %s: which copy becomes the source?", w.session.Job.Name, english.Plural(len(names), "target", ""))
	case f.t == nil:
		return f, fault.Usagef("name one of them: "+strings.Join(names, ", "), "job %q has no target %q", w.session.Job.Name, o.Target)
	}
	f.copyRoot = f.t.Target.CopyOf(f.root, f.root)
	if f.copyRoot == "" {
		return f, fault.Usagef("", "%s cannot have a copy of %s", f.t.Target.To, w.session.Job.Source)
	}
	f.result.Target, f.result.Copy = f.t.Name, f.copyEndpoint().String()
	if f.t.Target.Disk != nil {
		return f, fault.Refusef("import its pool, then restore from it: zxfer restore "+f.result.Copy+" NEW_DATASET",
			"target %s is on a disk that comes and goes: its copy cannot become the source", f.t.Name)
	}
	return f, cmp.Or(f.observe(ctx), f.checkHandover())
}

// checkHandover refuses a source that another job or target is replacing. Ending that switch could
// leave two writable sides, because its copy may be the source already.
func (f *failover) checkHandover() error {
	r := f.source.Role
	if r.Kind != zfs.RoleHandover || f.source.at == f.root && r.Job == f.session.Job.Name && r.Target == f.t.Name {
		return nil
	}
	return fault.Refusef("complete or end that switch: "+f.Env.Command("switch "+r.Job+" "+r.Target), "a switch replaces %s, started %s", f.result.Source, r.Describe())
}

// observe reads the roles of both sides.
func (f *failover) observe(ctx context.Context) error {
	done := f.session.Activity("reading the roles of source and copy")
	defer done()
	f.target = observeRole(ctx, f.t, f.copyRoot)
	if f.target.err != nil && !f.TargetLost {
		if f.source = observeRole(ctx, f.jobRun.session.Source, f.root); f.source.Role.Kind == zfs.RoleHandover {
			return fault.Failf("when it returns, complete the switch: "+f.Env.Command("switch "+f.session.Job.Name+" "+f.t.Name)+
				"\nif it is lost and its copy never became the source: "+f.Env.Command("switch --abort --target-lost "+f.session.Job.Name+" "+f.t.Name), "%w", f.target.err)
		}
		return f.target.err
	}
	if f.TargetLost && f.target.err == nil {
		return fault.Refusef("omit --target-lost", "%s can be reached", f.result.Copy)
	}
	if !f.TargetLost && !f.target.Exists {
		return fault.Refusef(f.Env.Command("run "+f.session.Job.Name), "%s: no copy of job %q", f.result.Copy, f.session.Job.Name)
	}
	if !f.sourceUnknown {
		f.source = observeRole(ctx, f.jobRun.session.Source, f.root)
	}
	f.state = decide.ObserveRoles(f.source.RoleSide, f.target.RoleSide)
	f.result.State = f.state
	return ctx.Err()
}

// permit refuses an event in the current state.
func (f *failover) permit(event decide.RoleEvent) error {
	_, err := decide.NextRoles(f.state, event)
	if err == nil {
		return nil
	}
	if f.source.err != nil {
		err = fault.Refusef(fault.HintOf(err), "%w: %w", err, f.source.err)
	}
	return refuseRole(f.session, err, f.t.Name, f.result.Copy, f.result.Source, f.target, f.source)
}

// requireOwner refuses a host on which this user must not change properties. A restricted key
// permits no change of roles.
func (f *failover) requireOwner(ctx context.Context, s *side, dataset string) error {
	err := hosts.Run(ctx, s, hosts.OpSetProperties, zfs.PropertyChange{Dataset: dataset})
	if errors.Is(err, hosts.ErrForbidden) {
		return fault.Refusef("run the same command on "+s.Host.Label()+", or with a key without restrictions",
			"%s: a restricted key cannot change roles: %w", s.Host.Label(), err)
	}
	return err
}

// add appends a step.
func (f *failover) add(s *side, text string, do func(context.Context) error) {
	step := &FailoverStep{Text: text, do: do}
	if s != nil {
		step.Host = s.Host.Label()
	}
	f.result.Steps = append(f.result.Steps, step)
}

// set appends a step that changes properties of a dataset.
func (f *failover) set(s *side, dataset string, set map[string]string, revert ...string) {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(set)) {
		words = append(words, name+"="+set[name])
	}
	text := ""
	if len(words) > 0 {
		text = zfs.CommandLine(slices.Concat([]string{"zfs", "set"}, words, []string{dataset}))
	}
	for _, name := range revert {
		if text != "" {
			text += "; "
		}
		text += zfs.CommandLine([]string{"zfs", "inherit", name, dataset})
	}
	f.add(s, text, func(ctx context.Context) error {
		return hosts.Run(ctx, s, hosts.OpSetProperties, zfs.PropertyChange{Dataset: dataset, Set: set, Revert: revert})
	})
}

// carryOut carries out the steps that are not done. After an error, the same command continues.
func (f *failover) carryOut(ctx context.Context) error {
	any := slices.ContainsFunc(f.result.Steps, func(s *FailoverStep) bool { return s.Done })
	for _, s := range f.result.Steps {
		if s.Done {
			continue
		}
		if ctx.Err() != nil {
			return fault.Interrupt("run the same command again, to complete it", fmt.Errorf("job %q: interrupted: %w", f.session.Job.Name, context.Cause(ctx)))
		}
		f.Env.Log(f.session.Job.Name + ": " + s.Line())
		if err := s.do(ctx); err != nil {
			err = fmt.Errorf("%s: %w", s.Line(), err)
			if any && fault.ClassOf(err) == fault.Refused {
				err = fault.Failf(cmp.Or(fault.HintOf(err), "run the same command again, to complete it"), "%w", err)
			}
			return err
		}
		s.Done, any = true, true
	}
	return nil
}

// Line returns the step as one line of text.
func (s *FailoverStep) Line() string {
	if s.Host == "" {
		return s.Text
	}
	return s.Host + ": " + s.Text
}

// again returns the same command with more flags, for hints.
func (f *failover) again(flags string) string {
	verb := "promote"
	if f.result.Schema == SwitchSchema {
		verb = "switch"
	}
	target := f.t.Name
	if f.SourceUnknown { // no job file names targets
		target = f.copyRoot
	}
	return f.Env.Command(strings.Join(strings.Fields(strings.Join([]string{verb, flags, f.session.Job.Name, target}, " ")), " "))
}

// newRoleID returns a random ID of a fail over.
func newRoleID() string {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}

// newRole returns the role that a side gets in a new fail over.
func (f *failover) newRole(kind zfs.RoleKind, before string) zfs.Role {
	return zfs.Role{Kind: kind, ID: newRoleID(), Before: before, Job: f.session.Job.Name, Target: f.t.Name, Since: f.Env.Now()}
}

// listCopy lists the copy with its descendants and versions.
func (f *failover) listCopy(ctx context.Context) (err error) {
	defer f.session.Activity("listing %s", f.result.Copy)()
	f.listed, err = f.t.List(ctx, hosts.ListQuery{Dataset: f.copyRoot, Recursive: f.session.Job.Recursive, Versions: true})
	if err == nil && len(f.listed.Datasets) == 0 {
		err = fmt.Errorf("%s: no such dataset", f.result.Copy)
	}
	return err
}

// copies returns the listed datasets that are copies of the job: the root, datasets that zxfer
// received, and datasets of a former source.
func (f *failover) copies() (out []*zfs.Dataset) {
	for _, d := range f.listed.Datasets {
		if d.Name == f.copyRoot || d.Properties[zfs.FlagsProperty].Local() || d.Properties[zfs.OriginProperty].Local() || f.wasSource(d) {
			out = append(out, d)
		}
	}
	return out
}

// wasSource reports whether a switch made the dataset a copy: it has snapshots, the job selects its
// name, and it is not mounted at boot.
func (f *failover) wasSource(d *zfs.Dataset) bool {
	source := f.root + strings.TrimPrefix(d.Name, f.copyRoot)
	if !f.session.Job.SelectsName(f.root, source) || !f.t.Target.SelectsName(f.root, source) || len(d.Snapshots()) == 0 {
		return false
	}
	canmount := d.Properties["canmount"]
	return d.Type == zfs.Volume || canmount.Local() && canmount.Value == "noauto"
}

// note adds a note to the result.
func (f *failover) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(f.result.Notes, text) { // a switch plans twice
		f.result.Notes = append(f.result.Notes, text)
	}
}

// hold appends a step that holds the common snapshots, so that later sends are incremental. guids is
// nil to hold the most recent snapshots.
func (f *failover) hold(s *side, datasets []*zfs.Dataset, guids map[uint64]bool) {
	var names []string
	for _, d := range datasets {
		all := d.Snapshots()
		for _, v := range slices.Backward(all) {
			if guids == nil || guids[v.GUID] {
				names = append(names, v.In(d.Name))
				break
			}
		}
	}
	if len(names) == 0 {
		return
	}
	f.add(s, "hold "+english.Plural(len(names), "common snapshot", ""), func(ctx context.Context) error {
		f.recordHolds(s, names)
		return s.Place(ctx, replicate.Tag(f.session.Job.Name, f.t.Name), names)
	})
}

// recordHolds records snapshots of a side that may have the job's hold. Without the record, holds --gc
// releases them, unless this host has no records of the job.
func (f *failover) recordHolds(s *side, names []string) {
	st := f.jobRun.session.State
	switch {
	case st.LastRun == nil:
		return
	case s == f.t:
		st.MayHoldCopies(f.t.Name, names, func(copied string) string { return f.root + strings.TrimPrefix(copied, f.copyRoot) })
	default:
		st.MayHold(f.t.Name, names)
	}
	if err := f.session.Store.Save(st); err != nil {
		f.note("cannot record holds: %v", err)
	}
}
