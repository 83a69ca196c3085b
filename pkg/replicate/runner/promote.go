package runner

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/zfs"
)

// PromoteSchema names the JSON format of a promotion.
const PromoteSchema = "zxfer.replicate.promote/v1"

// Promote makes a copy of a job the source, for example after its source was lost. It destroys
// nothing. The result describes what was done even with an error.
func (r *Runner) Promote(ctx context.Context, j *replicate.Job, o FailoverOptions) (*Failover, error) {
	return r.failover(ctx, j, o, PromoteSchema, func(ctx context.Context, f *failover) error { return f.promote(ctx) })
}

// failover locks a job, prepares a change of roles and calls do.
func (r *Runner) failover(ctx context.Context, j *replicate.Job, o FailoverOptions, schema string, do func(context.Context, *failover) error) (*Failover, error) {
	here, sourceUnknown := onThisHost(ctx, j, o.Target)
	sourceUnknown = sourceUnknown || o.SourceUnknown
	w, unlock, err := r.lockRun(ctx, here, false, "wait until it ends, then run the same command again")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if sourceUnknown && !o.SourceUnknown && w.session.State.LastRun != nil && w.session.State.LastRun.Source == j.Source {
		sourceUnknown = false // this host ran the job: the source is here, too
	}
	f, err := w.newFailover(ctx, o, sourceUnknown, schema)
	if err == nil {
		err = do(ctx, f)
	}
	err = replicate.InKeys(outcome.Settle(ctx, err))
	f.result.Conclusion = outcome.Conclude(err, outcome.Done)
	if err == nil && o.DryRun {
		f.result.Outcome = outcome.Planned
	}
	return f.result, err
}

// onThisHost returns the job as this host sees it. On the host of a copy, the job file of the
// source's host names this host in the target, and its source is not here.
// It looks only at the named target, "" = the only one.
func onThisHost(ctx context.Context, j *replicate.Job, target string) (_ *replicate.Job, sourceUnknown bool) {
	from, err := endpoint.Parse(j.Source)
	if err != nil || !from.Local() {
		return j, false
	}
	here := *j
	here.Targets = append([]replicate.Target{}, j.Targets...)
	for i := range here.Targets {
		t := &here.Targets[i]
		if target != "" && t.Name != target {
			continue
		}
		if at, err := endpoint.Parse(t.To); err == nil && !at.Local() && isThisHost(ctx, at.HostName()) {
			at.Host = ""
			t.To, sourceUnknown = at.String(), true
		}
	}
	return &here, sourceUnknown
}

// lookupTimeout limits the name lookup of a target's host.
const lookupTimeout = 5 * time.Second

// isThisHost reports whether a name or address of a job file means this computer.
func isThisHost(ctx context.Context, name string) bool {
	if own, err := os.Hostname(); err == nil && (strings.EqualFold(name, own) || strings.EqualFold(name, replicate.ShortName(own))) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupIPAddr(ctx, name)
	if err != nil { // an alias of the ssh configuration
		return false
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range addresses {
		for _, o := range own {
			if n, ok := o.(*net.IPNet); ok && n.IP.Equal(a.IP) {
				return true
			}
		}
	}
	return false
}

// promote plans the promotion and carries it out.
func (f *failover) promote(ctx context.Context) error {
	event := decide.PromoteEvent
	if f.SourceAlive {
		event = decide.PromoteAnyway
	}
	if err := f.permit(event); err != nil {
		if f.state == decide.Normal {
			err = fault.Refusef(fault.HintOf(err)+"\nif the source must stay writable too: "+f.again("--source-alive"), "%w", err)
		}
		return err
	}
	if err := cmp.Or(f.checkOtherCopies(ctx), f.requireOwner(ctx, f.t, f.copyRoot)); err != nil {
		return err
	}
	if err := f.listCopy(ctx); err != nil {
		return err
	}
	for _, d := range f.copies() {
		if _, any := d.Latest(); !any {
			f.note("%s has no complete snapshot", d.Name)
		} else if d.ResumeToken() != "" {
			f.note("%s has the state of an interrupted receive; to discard it: %s", d.Name, f.t.Host.Command("zfs", "receive", "-A", d.Name))
		}
	}
	if err := f.planPromote(ctx); err != nil {
		return err
	}
	f.nameReverse()
	if f.DryRun {
		return nil
	}
	return f.carryOut(ctx)
}

// checkOtherCopies refuses to make a copy the source if another one is the source already.
func (f *failover) checkOtherCopies(ctx context.Context) error {
	for _, t := range f.session.Targets {
		if t == f.t || t.Target.Disk != nil || f.sourceUnknown && t.At.Local() { // a local target of another host
			continue
		}
		at := t.Target.CopyOf(f.root, f.root)
		o := observeRole(ctx, t, at)
		switch {
		case o.err != nil:
			f.note("target %s cannot be reached: make sure that its copy is not the source: %v", t.Name, o.err)
		case o.Role.Kind == zfs.RoleSource:
			return fault.Refusef("if that copy is not used, clear its role: "+t.Host.Command("zfs", "inherit", zfs.RoleProperty, o.at),
				"target %s: its copy %s became the source %s", t.Name, at, o.Role.Describe())
		}
	}
	return nil
}

func (f *failover) planPromote(ctx context.Context) error {
	if f.target.Role.Kind != zfs.RoleSource {
		f.hold(f.t, f.copies(), nil)
		if err := f.holdSource(ctx); err != nil {
			return err
		}
		f.restrict()
		role := f.newRole(zfs.RoleSource, f.target.Role.ID)
		f.set(f.t, f.copyRoot, map[string]string{zfs.RoleProperty: role.String()})
	}
	switch {
	case f.source.err != nil:
		f.note("the source cannot be reached: %v", f.source.err)
	case f.sourceUnknown:
		f.note("the job file does not name the source's host: its state is unknown")
	case f.source.Reached && f.source.Exists && f.source.Role.Kind == "":
		f.note("the source %s is still writable: stop its users", f.result.Source)
	}
	return f.planTakeover(ctx, recorded)
}

// holdSource holds the common snapshots of a source that can be reached.
func (f *failover) holdSource(ctx context.Context) error {
	if !f.source.Reached || !f.source.Exists {
		return nil
	}
	l, err := f.jobRun.session.Source.List(ctx, hosts.ListQuery{Dataset: f.root, Recursive: f.session.Job.Recursive, Versions: true, NoAncestors: true})
	if err != nil {
		return err
	}
	guids := map[uint64]bool{}
	for _, d := range f.copies() {
		for _, v := range d.Snapshots() {
			guids[v.GUID] = true
		}
	}
	f.hold(f.jobRun.session.Source, l.Datasets, guids)
	return nil
}

// nameReverse adds the reverse job to the result, as far as the addresses are known.
func (f *failover) nameReverse() {
	to := f.jobRun.session.Source.At
	if f.sourceUnknown {
		o, known, err := recorded(f.listed.Datasets[0])
		if !known || err != nil || o.Host == "" {
			return
		}
		at, err := endpoint.Parse(o.Host + ":" + to.Name)
		if err != nil {
			return
		}
		to = at
	}
	j, err := f.session.Job.Reverse(f.t.Target, f.copyEndpoint(), to)
	if err != nil {
		f.note("%v", err)
		return
	}
	f.result.ReverseName, f.result.ReverseText = j.Name, j.PrintedText()
	job, where, again := f.session.Job.Name, "", f.Env.Command
	if len(f.session.Targets) > 1 {
		job += " " + f.t.Name
	}
	if f.sourceUnknown {
		where, again = ", on its host", func(args string) string { return "zxfer replicate " + args } // its job file may have another path
	}
	f.result.Next = append(f.result.Next, "when the former source returns, make it a copy"+where+": "+again("switch "+job))
}

// poolStatistics has a directory for each imported pool, also for unprivileged users.
const poolStatistics = "/proc/spl/kstat/zfs"

// RefuseUnnamedCopy refuses to promote a copy of a job that is not in the job file, unless the user
// names its dataset: the record that names the job was written by the source of the copy, and another
// source may claim the job. The refusal lists the datasets of this host with such a record.
func (r *Runner) RefuseUnnamedCopy(ctx context.Context, name string) error {
	entries, err := os.ReadDir(poolStatistics)
	if err != nil {
		return err
	}
	var pools []string
	for _, e := range entries {
		if e.IsDir() {
			pools = append(pools, e.Name())
		}
	}
	return r.refuseUnnamed(ctx, name, pools)
}

// maxListedCopies is how many copies a refusal lists, and maxCopyHints how many commands it has.
const maxListedCopies, maxCopyHints = 10, 3

// refuseUnnamed is RefuseUnnamedCopy for some pools.
func (r *Runner) refuseUnnamed(ctx context.Context, name string, pools []string) error {
	here := r.Env.Hosts.Get("", &(&replicate.Transfer{}).Settings)
	var found, commands []string
	for _, pool := range pools {
		done := r.Env.ReportTo(name, "").Activity("looking for copies of job " + name + " in pool " + pool)
		l, err := here.List(ctx, hosts.ListQuery{Dataset: pool, Recursive: true})
		done()
		if err != nil {
			return err
		}
		for _, d := range l.Datasets {
			text := ""
			role, roleErr := zfs.RoleIn(d.Properties)
			if o, known, err := recorded(d); known && err == nil && o.Job == name {
				source := o.Source
				if o.Host != "" && !strings.Contains(source, ":") {
					source = o.Host + ":" + source
				}
				text = fmt.Sprintf("%s (its source is recorded as %.300q)", d.Name, source)
			} else if roleErr == nil && role.Job == name && role.Kind == zfs.RoleSource {
				text = d.Name + " (it became the source)"
			}
			if text == "" {
				continue
			}
			if found = append(found, text); len(commands) < maxCopyHints {
				commands = append(commands, r.Env.Command("promote "+name+" "+d.Name))
			}
		}
	}
	if len(found) == 0 {
		return fault.Refusef("name the dataset of the copy: "+r.Env.Command("promote "+name+" DATASET"), "no dataset of this host is recorded as a copy of job %q", name)
	}
	all := len(found)
	found = found[:min(all, maxListedCopies)]
	return fault.Refusef(strings.Join(commands, "\n"), "the copy is not named, and any source can claim job %q; %d on this host: %s", name, all, strings.Join(found, ", "))
}

// JobOfCopy returns a job for the promotion of a copy on this host whose job is not in the job
// file. The record of the source on the copy names it.
func (r *Runner) JobOfCopy(ctx context.Context, name, dataset string) (*replicate.Job, error) {
	if _, err := zfs.ParseDataset(dataset); err != nil {
		return nil, err
	}
	l, err := r.Env.Hosts.Get("", &(&replicate.Transfer{}).Settings).List(ctx, hosts.ListQuery{Dataset: dataset})
	if err != nil {
		return nil, err
	}
	d := l.Find(dataset)
	if d == nil || len(l.Datasets) == 0 {
		return nil, fault.Refusef("list the copies of this host: "+zfs.CommandLine([]string{"zfs", "get", "-s", "local", "-o", "name,value", zfs.OriginProperty}), "%s: no such dataset", dataset)
	}
	o, known, err := recorded(d)
	if role, roleErr := zfs.RoleIn(d.Properties); !known && err == nil && roleErr == nil && role.Job == name {
		o, known = zfs.Origin{Job: role.Job, Target: role.Target}, true
	}
	switch {
	case err != nil:
		return nil, fault.Refusef("clear it: "+zfs.CommandLine([]string{"zfs", "inherit", zfs.OriginProperty, dataset}), "%s: %w", dataset, err)
	case !known || o.Job != name:
		return nil, fault.Refusef("name the job file that has the job: zxfer replicate promote --config FILE "+name, "%s is not recorded as a copy of job %q", dataset, name)
	}
	// Nothing connects to the recorded address of the source, which another host chose.
	source := "unknown"
	if at, err := endpoint.Parse(o.Source); err == nil && !at.Path() {
		source = at.Name
	}
	return &replicate.Job{Name: o.Job, Source: source, Recursive: true, Snapshots: replicate.Snapshots{Adopt: []string{"*"}},
		Targets: []replicate.Target{{Name: o.Target, To: dataset}}}, nil
}
