// Package failover changes the roles of a job's source and a copy: a planned switch, and a promotion after a loss.
//
// A command reads the roles on both sides, plans changes and carries them out. Each change may be repeated. After an
// interruption, the same command continues from the roles that it finds.
package failover

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// Schemas of the results.
const (
	PromoteSchema = "zxfer.replicate.promote/v1"
	SwitchSchema  = "zxfer.replicate.switch/v1"
)

// Promote makes a copy of a job the source, for example after its source was lost. It destroys
// nothing. The result describes what was done even with an error.
func Promote(ctx context.Context, e *session.Env, runs Runs, j *replicate.Job, o Options) (*Result, error) {
	return change(ctx, e, j, o, &failover{options: o, verb: "promote", runs: runs}, PromoteSchema, (*failover).promote)
}

// Switch swaps the roles of a job's source and a copy. The source becomes read-only, the last
// increment is sent, the copy becomes the source, and the source becomes its copy. At no time are
// both writable. After an interruption at any step, the same call completes it. After a complete switch, the same
// call switches back.
func Switch(ctx context.Context, e *session.Env, runs Runs, j *replicate.Job, o Options) (*Result, error) {
	if p, err := statedir.Paused(e.StateDir, j.Name, e.Now()); !o.DryRun && !o.Abort && (err != nil || p.State(e.Now()).Active()) {
		if err == nil {
			err = p.Refusal(j.Name, e.ResumeCommand(j, p), "", session.Stamp)
		}
		return nil, err
	}
	return change(ctx, e, j, o, &failover{options: o, verb: "switch", runs: runs}, SwitchSchema, func(f *failover, ctx context.Context) error {
		s := &roleSwitch{f: f}
		if o.Abort {
			return s.abort(ctx)
		}
		return s.run(ctx)
	})
}

// change locks a job, prepares a change of roles and calls do.
func change(ctx context.Context, e *session.Env, j *replicate.Job, o Options, f *failover, schema string, do func(*failover, context.Context) error) (*Result, error) {
	here, elsewhere := session.OnThisHost(ctx, j, o.Target)
	store, unlock, err := e.LockStore(ctx, here, false, "wait until it ends, then run the same command again")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if f.session, err = e.Open(here, store); err != nil {
		return nil, err
	}
	f.sourceUnknown = o.SourceUnknown || elsewhere && !f.session.RanHere(j) // otherwise the source is here, too
	if err = f.open(ctx); err == nil {
		err = do(f, ctx)
	}
	err = replicate.InKeys(outcome.Settle(ctx, err))
	return f.result(schema, err), err
}

// Options are the options of promote and switch.
type Options struct {
	Target     string // name of the target; "" if the job has one, or to switch back
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

// Result is the result of a change of roles.
type Result struct {
	Schema string `json:"schema"`
	Job    string `json:"job"`
	// Target is the target of the job file whose copy and the source change their roles.
	Target string `json:"target"`
	// Source and Copy are the datasets before the change, "[[user@]host:]dataset".
	Source string       `json:"source"`
	Copy   string       `json:"copy"`
	State  decide.Roles `json:"state"` // before the command
	Steps  []Step       `json:"steps"`
	// Bytes is the number of bytes that the command sent from the source to the copy.
	Bytes  uint64   `json:"bytes"`
	Notes  []string `json:"notes"`
	Next   []string `json:"next"` // commands left to the user
	DryRun bool     `json:"dry_run"`
	outcome.Conclusion
}

// Step is one change.
type Step struct {
	Host string `json:"host,omitempty"` // "" = the records on this host
	Text string `json:"text"`
	Done bool   `json:"done"`
}

// Line returns the step as one line of text.
func (s *Step) Line() string {
	if s.Host == "" {
		return s.Text
	}
	return s.Host + ": " + s.Text
}

// Runs does the parts of a run that a switch needs. Pauses and bandwidth windows do not stop them.
type Runs interface {
	// Survey lists the source with all versions.
	Survey(ctx context.Context, s *session.Session) (*decision.Survey, error)
	// RunTo runs the job of a session once, and sends to one target.
	RunTo(ctx context.Context, s *session.Session, target string) (*statedir.Run, error)
	// SendTo sends the snapshots of a survey to the only target of a session. It prunes nothing.
	SendTo(ctx context.Context, s *session.Session, v *decision.Survey) (*send.BatchResult, error)
}

// failover is a change of roles of a pair: the source of a session and one copy.
type failover struct {
	options Options
	verb    string // "promote" or "switch"
	runs    Runs
	session *session.Session
	t       *session.Side
	plan    steps
	// root and copyRoot are datasets on the source and the target.
	root, copyRoot string
	source, target session.Role
	sourceUnknown  bool // no address of the source is known on this host
	state          decide.Roles
	listed         zfs.Listing // the copy and its descendants
	// freed are mountpoints that the source leaves before the copy is mounted, if both are on one
	// computer.
	freed map[string]bool
	// willRecord reports that the copies get the records of the source that they lack.
	willRecord bool
	waits      bool // a copy cannot be mounted before its key is loaded
	bytes      uint64
	notes      []string
	next       []string
}

// result returns the result, with the steps as far as they are planned.
func (f *failover) result(schema string, err error) *Result {
	r := &Result{Schema: schema, Job: f.session.Job.Name, Source: f.session.Job.Source, State: f.state, Steps: f.plan.steps(), Bytes: f.bytes,
		Notes: append([]string{}, f.notes...), Next: append([]string{}, f.next...), DryRun: f.options.DryRun, Conclusion: outcome.Conclude(err, outcome.Done)}
	if f.t != nil {
		r.Target, r.Copy = f.t.Target.Pair(), f.copyName()
	}
	if err == nil && f.options.DryRun {
		r.Outcome = outcome.Planned
	}
	return r
}

// copyName returns the address of the copy.
func (f *failover) copyName() string {
	return endpoint.Endpoint{Host: f.t.At.Host, Name: f.copyRoot}.String()
}

// open selects the target and the direction of the pair, and observes both sides.
func (f *failover) open(ctx context.Context) error {
	s := f.session
	if len(s.Written.Targets) == 0 {
		return fault.Usagef("", "job %q has no [[job.target]], so it has no copy", s.Job.Name)
	}
	written, err := s.With(s.Written) // the command names the places as the job file does
	if err != nil {
		return err
	}
	f.session = written
	if !f.sourceUnknown {
		done := s.Activity("reading the role of the source")
		f.source = written.ReadRole(ctx, written.Source)
		done()
	}
	if err := f.choose(ctx); err != nil {
		return err
	}
	done := s.Activity("reading the role of the copy")
	f.target = written.ReadRole(ctx, f.t)
	done()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	place, name, since := "", f.t.Name, time.Time{}
	state, reversed := decide.ObserveRoles(f.source.RoleSide, f.target.RoleSide)
	if f.state = state; reversed { // the copy is the source, and the command changes the roles back
		place, name, since = name, replicate.FormerSource, f.target.Role.Since
		f.root, f.copyRoot, f.source, f.target = f.copyRoot, f.root, f.target, f.source
	}
	if f.session = s; place != s.State.Place {
		if f.session, err = s.Turn(place, since); err != nil {
			return err
		}
	}
	f.t = f.session.Side(name)
	if f.t.Target.Disk != nil {
		return fault.Refusef("import its pool, then restore from it: zxfer restore "+f.copyName()+" NEW_DATASET",
			"target %s is on a disk that comes and goes: its copy cannot become the source", f.t.Name)
	}
	if err := f.checkSides(); err != nil {
		return err
	}
	return f.checkHandover()
}

// choose selects the target: the named one, the only one, or the one with which the source changed its role.
func (f *failover) choose(ctx context.Context) error {
	recorded := f.session.State.Place
	var names []string
	for _, t := range f.session.Targets {
		names = append(names, t.Name)
	}
	want, role := f.options.Target, f.source.Role
	switched := recorded
	if role.Kind != "" && role.Job == f.session.Job.Name {
		switched = role.Target
	}
	switch {
	case want == replicate.FormerSource && switched != "":
		want = switched
	case want == "" && len(names) == 1:
		want = names[0]
	case want == "" && (role.Kind == zfs.RoleStandby || role.Kind == zfs.RoleHandover || recorded != "" || f.unfinished(ctx)):
		want = switched
	case want != "" && role.Kind == zfs.RoleStandby && role.Job == f.session.Job.Name && role.Target != want:
		return fault.Refusef("switch back first: "+f.session.Env.Command("switch "+f.session.Job.Name+" "+role.Target),
			"job %q: the copy on target %s is the source %s: only the former source can replace it", f.session.Job.Name, role.Target, role.Describe())
	case want == "":
		return fault.Usagef("name one of them: "+strings.Join(names, ", "), "job %q has %s: which copy becomes the source?", f.session.Job.Name, english.Plural(len(names), "target", ""))
	}
	if f.t = f.session.Side(want); f.t == f.session.Source {
		f.t = nil
		return fault.Usagef("name one of them: "+strings.Join(names, ", "), "job %q has no target %q", f.session.Job.Name, want)
	}
	f.root, f.copyRoot = f.session.Source.At.Name, f.session.Root(f.t).Name
	if f.copyRoot == "" {
		return fault.Usagef("", "%s cannot have a copy of %s", f.t.Target.To, f.session.Job.Source)
	}
	return nil
}

// unfinished reports whether the source of a job with several targets is the source already, but the switch is not
// complete, or its last answer was lost.
func (f *failover) unfinished(ctx context.Context) bool {
	role := f.source.Role
	t := f.session.Side(role.Target)
	if role.Kind != zfs.RoleSource || role.Job != f.session.Job.Name || t == f.session.Source {
		return false
	}
	copied := f.session.ReadRole(ctx, t).Role
	return copied.Kind != zfs.RoleStandby || copied.ID != role.ID || role.ID == f.session.State.Switch
}

// checkSides refuses a target that cannot be reached, or has no copy.
func (f *failover) checkSides() error {
	again := f.session.Job.Name + " " + f.t.Target.Pair()
	if f.target.Err != nil && !f.options.TargetLost {
		if f.source.Role.Kind == zfs.RoleHandover {
			return fault.Failf("when it returns, complete the switch: "+f.session.Env.Command("switch "+again)+
				"\nif it is lost and its copy never became the source: "+f.session.Env.Command("switch --abort --target-lost "+again), "%w", f.target.Err)
		}
		return f.target.Err
	}
	if f.options.TargetLost && f.target.Err == nil {
		return fault.Refusef("omit --target-lost", "%s can be reached", f.copyName())
	}
	if !f.options.TargetLost && !f.target.Exists {
		return fault.Refusef(f.session.Env.Command("run "+f.session.Job.Name), "%s: no copy of job %q", f.copyName(), f.session.Job.Name)
	}
	return nil
}

// checkHandover refuses a source that another job or target is replacing. Ending that switch could
// leave two writable sides, because its copy may be the source already.
func (f *failover) checkHandover() error {
	r := f.source.Role
	if r.Kind != zfs.RoleHandover || f.source.At == f.root && r.Job == f.session.Job.Name && r.Target == f.t.Target.Pair() {
		return nil
	}
	return fault.Refusef("complete or end that switch: "+f.session.Env.Command("switch "+r.Job+" "+r.Target), "a switch replaces %s, started %s", f.session.Job.Source, r.Describe())
}

// checkOtherCopies refuses to make a copy the source if another one is the source already.
func (f *failover) checkOtherCopies(ctx context.Context) error {
	for _, t := range f.session.Targets {
		if t == f.t || t.Target.Disk != nil || f.sourceUnknown && t.At.Local() { // a local target of another host
			continue
		}
		o := f.session.ReadRole(ctx, t)
		switch {
		case o.Err != nil:
			f.note("target %s cannot be reached: make sure that its copy is not the source: %v", t.Name, o.Err)
		case o.Role.Kind == zfs.RoleSource:
			return fault.Refusef("if that copy is not used, clear its role: "+t.Host.Command("zfs", "inherit", zfs.RoleProperty, o.At),
				"target %s: its copy %s became the source %s", t.Name, o.Dataset, o.Role.Describe())
		}
	}
	return nil
}

// permit refuses an event in the current state.
func (f *failover) permit(event decide.RoleEvent) error {
	if decide.PermitRoles(f.state, event) == nil {
		return nil
	}
	return fmt.Errorf("job %q: %w", f.session.Job.Name, f.session.RefuseRoles(f.state, event, f.t.Target.Pair(), f.source, f.target))
}

// nextPlace returns the target of the job file whose copy is the source after the change of roles, "" = the source of
// the job file is.
func (f *failover) nextPlace() string {
	if f.t.Name == replicate.FormerSource {
		return ""
	}
	return f.t.Name
}

// expect records that the last change of a switch follows. Without the record, the same command could not tell a complete
// switch from one whose last answer was lost, and would switch back.
func (f *failover) expect(id string) error {
	f.session.State.Switch = id
	return f.session.Store.Save(f.session.State)
}

// completed reports whether both sides have the roles of the switch that expect recorded.
func (f *failover) completed() bool {
	id, s, t := f.session.State.Switch, f.source.Role, f.target.Role
	return id != "" && s.Kind == zfs.RoleSource && t.Kind == zfs.RoleStandby && s.ID == id && t.ID == id
}

// recordDirection records the direction of the next run. If it fails, the next run finds the roles on the datasets.
func (f *failover) recordDirection() {
	st := f.session.State
	st.Turn(f.nextPlace(), f.session.Env.Now())
	st.Switch = ""
	if err := f.session.Store.Save(st); err != nil {
		f.note("cannot record the direction: %v", err)
	}
}

// requireOwner refuses a host on which this user must not change properties. A restricted key
// permits no change of roles.
func requireOwner(ctx context.Context, s *session.Side, dataset string) error {
	err := hosts.Run(ctx, s, hosts.OpSetProperties, zfs.PropertyChange{Dataset: dataset})
	if errors.Is(err, hosts.ErrForbidden) {
		return fault.Refusef("run the same command on "+s.Host.Label()+", or with a key without restrictions",
			"%s: a restricted key cannot change roles: %w", s.Host.Label(), err)
	}
	return err
}

// again returns the same command with more flags, for hints.
func (f *failover) again(flags string) string {
	target := f.t.Target.Pair()
	if f.options.SourceUnknown { // no job file names targets
		target = f.copyRoot
	}
	return f.session.Env.Command(strings.Join(strings.Fields(strings.Join([]string{f.verb, flags, f.session.Job.Name, target}, " ")), " "))
}

// newRoleID returns a random ID of a fail over.
func newRoleID() string {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}

// newRole returns the role that a side gets in a new fail over.
func (f *failover) newRole(kind zfs.RoleKind, before string) zfs.Role {
	return zfs.Role{Kind: kind, ID: newRoleID(), Before: before, Job: f.session.Job.Name, Target: f.t.Target.Pair(), Since: f.session.Env.Now()}
}

// listCopy lists the copy with its descendants and versions.
func (f *failover) listCopy(ctx context.Context) (err error) {
	defer f.session.Activity("listing %s", f.copyName())()
	f.listed, err = f.t.List(ctx, hosts.ListQuery{Dataset: f.copyRoot, Recursive: f.session.Job.Recursive, Versions: true})
	if err == nil && len(f.listed.Datasets) == 0 {
		err = fmt.Errorf("%s: no such dataset", f.copyName())
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
