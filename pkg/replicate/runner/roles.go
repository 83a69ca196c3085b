package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/zfs"
)

// observedSide is a side of a pair with the error of its observation.
type observedSide struct {
	decide.RoleSide
	at  string // the dataset that has the role
	err error  // why the side could not be reached
}

// observe reads the role of a dataset. An ancestor's role also applies to it.
func observe(ctx context.Context, s *side, dataset string) (o observedSide) {
	var names []string
	for name := dataset; name != ""; name = zfs.ParentOf(name) {
		names = append(names, name)
	}
	found, err := s.Properties(ctx, names, "type", zfs.RoleProperty)
	if err != nil {
		o.err = err
		return o
	}
	o.Reached, o.Exists = true, found[dataset] != nil
	o.at, o.Role, o.Invalid = zfs.RoleOf(dataset, func(name string) map[string]zfs.Property { return found[name] })
	return o
}

// standby refuses to run a job that a fail over made a standby job.
func (r *Runner) standby(j *replicate.Job) error {
	if !j.Standby {
		return nil
	}
	reverse := replicate.ReverseName(j.Name)
	return fault.Refusef("run the job in the other direction: "+r.Env.Command("run "+reverse)+"\nswitch back to this one: "+r.Env.Command("switch "+reverse),
		"job %q: it is standby, because its source became a copy", j.Name)
}

// checkRoles refuses a run if a fail over changed the roles of the source or a copy. A host that it
// cannot reach counts as a side without a role: the run reports the error. It does not query targets
// to which the run sends nothing.
func (w *jobRun) checkRoles(ctx context.Context, root string) error {
	roles, stop := w.readRoles(ctx, root)
	defer stop()
	return w.judgeRoles(root, roles)
}

// sideRoles holds the observed roles of a run. done is closed when they are complete.
type sideRoles struct {
	done    chan struct{}
	source  observedSide
	targets []observedSide // in the order of the targets
	began   time.Time
}

// maxRolesAge is how old roles may be before a run takes snapshots. Listing a large source takes long, and
// another host may promote a copy during that time.
const maxRolesAge = 2 * time.Second

// readRoles reads the roles for judgeRoles in the background. stop cancels that and waits.
func (w *jobRun) readRoles(ctx context.Context, root string) (r *sideRoles, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	r = &sideRoles{began: time.Now(), done: make(chan struct{}), targets: make([]observedSide, len(w.session.Targets))}
	var all sync.WaitGroup
	all.Go(func() { r.source = observe(ctx, w.session.Source, root) })
	for i, t := range w.session.Targets {
		if w.heldBatch(t) == nil && w.withoutDisk(t) == nil {
			all.Go(func() { r.targets[i] = observe(ctx, t, t.Target.CopyOf(root, root)) })
		}
	}
	go func() { all.Wait(); close(r.done) }()
	return r, func() { cancel(); <-r.done }
}

// judgeRoles waits for the roles and decides for checkRoles.
func (w *jobRun) judgeRoles(root string, r *sideRoles) error {
	read := w.session.Activity("reading the roles of source and copies")
	<-r.done
	read()
	source, targets := r.source, r.targets
	if source.err != nil {
		return source.err
	}
	if source.Role.Kind == zfs.RoleStandby && w.session.Scope.Naming() == nil && source.Role.Job != w.session.Job.Name {
		source.Role = zfs.Role{} // a relay: it sends on what arrives
	}
	w.promoted = source.Role.Kind == zfs.RoleSource
	where := w.session.Source.Host.Label() + ":" + root
	if source.Role.Kind == zfs.RoleStandby {
		reverse := source.Role.Job
		if reverse == w.session.Job.Name {
			reverse = replicate.ReverseName(reverse)
		}
		return fault.Refusef("to switch back: "+w.Env.Command("switch "+reverse)+"\nif its source is lost: "+w.Env.Command("promote "+reverse),
			"%s became a copy %s: this job must not change it", where, source.Role.Describe())
	}
	targets = append(targets, observedSide{}) // the source alone, also of a job without targets
	for i, o := range targets {
		state := decide.ObserveRoles(source.RoleSide, o.RoleSide)
		if _, err := decide.NextRoles(state, decide.RunEvent); err == nil {
			continue
		} else if i < len(w.session.Targets) {
			t := w.session.Targets[i]
			return w.refuseRole(err, t.Name, t.Host.Label()+":"+t.Target.CopyOf(root, root), where, o, source)
		} else {
			return w.refuseRole(err, "", where, where, o, source)
		}
	}
	return nil
}

// refuseRole completes a refusal of decide.NextRoles with the datasets, the time, the job and the name of
// the target, "" = none.
func (w *jobRun) refuseRole(err error, name, copied, source string, target, from observedSide) error {
	why := err
	for _, side := range []struct {
		name string
		observedSide
	}{{copied, target}, {source, from}} {
		switch {
		case side.Invalid != nil:
			why = fmt.Errorf("%w: %s: %w", why, side.name, side.Invalid)
		case side.Role.Kind != "":
			why = fmt.Errorf("%w: %s is recorded as %s %s", why, side.name, side.Role.Kind, side.Role.Describe())
		}
	}
	job, reverse := w.session.Job.Name, replicate.ReverseName(w.session.Job.Name)
	if r := from.Role; r.Kind == zfs.RoleHandover {
		job = r.Job + " " + r.Target
	} else if len(w.session.Targets) > 1 && name != "" {
		job += " " + name
	}
	lines := strings.Split(fault.HintOf(err), "\n")
	for i, line := range lines {
		text, command, found := strings.Cut(line, "zxfer replicate ")
		if !found {
			lines[i] = strings.ReplaceAll(line, "DATASET", w.session.Source.At.Name)
			continue
		}
		words := strings.Fields(command)
		for k, word := range words {
			words[k] = map[string]string{"JOB": job, "JOB" + replicate.ReverseName(""): reverse}[word]
			words[k] = cmp.Or(words[k], word)
		}
		lines[i] = text + w.Env.Command(strings.Join(words, " "))
	}
	return fault.Refusef(strings.Join(lines, "\n"), "job %q: %w", w.session.Job.Name, why)
}

// noteLacking notes the copies of a batch that lack properties of their source.
func (w *jobRun) noteLacking(b *batch) {
	for _, d := range b.result.Datasets {
		if d.Unset != nil {
			w.note("%s: %v: %s", b.Name, d.Unset, fault.HintOf(d.Unset))
		}
	}
}

// recordOrigins records on the copies of a batch the properties that they need to replace their
// source. It writes only changed records. A missing permission, or a command that a host without
// zxfer does not permit, is not an error: promote then asks for the mountpoint.
func (w *jobRun) recordOrigins(ctx context.Context, v *replicate.Survey, b *batch) {
	if b.err != nil || ctx.Err() != nil {
		return
	}
	copies := b.result.Target.ByName()
	var changes []hosts.Change
	for _, d := range v.DatasetsFor(b.Name) {
		copied := copies[b.Target.CopyOf(v.Root, d.Name)]
		if copied == nil || copied.Inconsistent() {
			continue
		}
		if change := w.originChange(ctx, d, copied, b.side, d.Name == v.Root); change != nil {
			changes = append(changes, hosts.OpSetProperties.Change(*change))
		}
	}
	done, err := hosts.Apply(ctx, b, changes)
	if err == nil {
		return
	}
	f, _ := b.Host.Facts(ctx) // cached
	if !errors.Is(err, hosts.ErrForbidden) && !errors.Is(err, &zfs.Error{Kind: zfs.Permission}) && f.NoAgent == "" {
		w.note("%s: cannot record the properties of the source on %s: %v", b.Name, changes[done].Args.(zfs.PropertyChange).Dataset, err)
	}
}

// originChange returns the change of the records on a copy, or nil if they are up to date.
func (w *jobRun) originChange(ctx context.Context, d, copied *zfs.Dataset, t *side, root bool) *zfs.PropertyChange {
	o, want := zfs.OriginOf(d, root), ""
	if root {
		o.Job, o.Target, o.Source = w.session.Job.Name, t.Name, w.session.Source.At.String()
		if f, err := w.session.Source.Host.Facts(ctx); err == nil {
			o.Host = f.Hostname
		}
	}
	if root || len(o.Set) > 0 {
		want = o.Encode()
	}
	return recordChange(copied, want, settingsOf(t.Target, d, root).Encode())
}

// recordChange returns the change of the records on a copy, or nil if they are up to date. origin and settings are
// the values to record, "" = none. A value that cannot be recorded is not changed.
func recordChange(copied *zfs.Dataset, origin, settings string) *zfs.PropertyChange {
	c := zfs.PropertyChange{Dataset: copied.Name, Set: map[string]string{}}
	for _, r := range []struct {
		name, want string
		check      func(string) error
	}{
		{zfs.OriginProperty, origin, func(s string) error { _, err := zfs.ParseOrigin(s); return err }},
		{zfs.SettingsProperty, settings, func(s string) error { _, err := zfs.ParseSettings(s); return err }},
	} {
		was := ""
		if p := copied.Properties[r.name]; p.Local() {
			was = p.Value
		}
		switch {
		case was == r.want:
		case r.want == "":
			c.Revert = append(c.Revert, r.name)
		case r.check(r.want) == nil:
			c.Set[r.name] = r.want
		}
	}
	if len(c.Set)+len(c.Revert) == 0 {
		return nil
	}
	return &c
}
