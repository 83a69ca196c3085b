package failover

import (
	"context"
	"fmt"
	"os"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/zfs"
)

// promote plans the promotion and carries it out.
func (f *failover) promote(ctx context.Context) error {
	event := decide.PromoteEvent
	if f.options.SourceAlive {
		event = decide.PromoteAnyway
	}
	if err := f.permit(event); err != nil {
		if f.state == decide.Normal {
			err = fault.Refusef(fault.HintOf(err)+"\nif the source must stay writable too: "+f.again("--source-alive"), "%w", err)
		}
		return err
	}
	if err := f.checkOtherCopies(ctx); err != nil {
		return err
	}
	if err := requireOwner(ctx, f.t, f.copyRoot); err != nil {
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
	f.adviseNext()
	if f.options.DryRun {
		return nil
	}
	if err := f.carryOut(ctx); err != nil || f.sourceUnknown {
		return err
	}
	f.recordDirection()
	return nil
}

func (f *failover) planPromote(ctx context.Context) error {
	if f.target.Role.Kind != zfs.RoleSource {
		f.hold(f.t, f.session.Job.Tag(f.t.Name), f.copies(), nil, func(names []string) {
			f.session.State.MayHoldCopies(f.t.Name, names, func(copied string) string { return f.root + strings.TrimPrefix(copied, f.copyRoot) })
		})
		if err := f.holdSource(ctx); err != nil {
			return err
		}
		f.restrict()
		role := f.newRole(zfs.RoleSource, f.target.Role.ID)
		f.plan.set(f.t, f.copyRoot, map[string]string{zfs.RoleProperty: role.String()})
	}
	switch {
	case f.source.Err != nil:
		f.note("the source cannot be reached: %v", f.source.Err)
	case f.sourceUnknown:
		f.note("the job file does not name the source's host: its state is unknown")
	case f.source.Reached && f.source.Exists && f.source.Role.Kind == "":
		f.note("the source %s is still writable: stop its users", f.session.Job.Source)
	}
	return f.planTakeover(ctx, replicate.Recorded)
}

// holdSource holds the common snapshots of a source that can be reached.
func (f *failover) holdSource(ctx context.Context) error {
	if !f.source.Reached || !f.source.Exists {
		return nil
	}
	l, err := f.session.Source.List(ctx, hosts.ListQuery{Dataset: f.root, Recursive: f.session.Job.Recursive, Versions: true, NoAncestors: true})
	if err != nil {
		return err
	}
	guids := map[uint64]bool{}
	for _, d := range f.copies() {
		for _, v := range d.Snapshots() {
			guids[v.GUID] = true
		}
	}
	f.hold(f.session.Source, f.session.Job.Tag(f.t.Name), l.Datasets, guids, func(names []string) { f.session.State.MayHold(f.t.Name, names) })
	return nil
}

// adviseNext adds the commands for the return of the former source.
func (f *failover) adviseNext() {
	job := f.session.Job.Name
	if len(f.session.Written.Targets) > 1 {
		job += " " + f.t.Target.Pair()
	}
	if !f.sourceUnknown {
		f.next = append(f.next, "when the former source returns, make it a copy: "+f.session.Env.Command("switch "+job))
		return
	}
	o, known, err := replicate.Recorded(f.listed.Datasets[0])
	if !known || err != nil || o.Host == "" {
		return
	}
	if !f.options.SourceUnknown {
		f.next = append(f.next, fmt.Sprintf("to run the job here, write into the job file: source = %q", o.Host+":"+f.root))
	}
	f.next = append(f.next, "when the former source returns, make it a copy, on its host: zxfer replicate switch "+job) // its job file may have another path
}

// poolStatistics has a directory for each imported pool, also for unprivileged users.
const poolStatistics = "/proc/spl/kstat/zfs"

// RefuseUnnamedCopy refuses to promote a copy of a job that is not in the job file, unless the user
// names its dataset: the record that names the job was written by the source of the copy, and another
// source may claim the job. The refusal lists the datasets of this host with such a record.
func RefuseUnnamedCopy(ctx context.Context, e *session.Env, name string) error {
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
	return RefuseUnnamedIn(ctx, e, name, pools)
}

// maxListedCopies is how many copies a refusal lists, and maxCopyHints how many commands it has.
const maxListedCopies, maxCopyHints = 10, 3

// RefuseUnnamedIn is RefuseUnnamedCopy for some pools.
func RefuseUnnamedIn(ctx context.Context, e *session.Env, name string, pools []string) error {
	here := e.Hosts.Get("", &(&replicate.Transfer{}).Settings)
	var found, commands []string
	for _, pool := range pools {
		done := e.ReportTo(name, "").Activity("looking for copies of job " + name + " in pool " + pool)
		l, err := here.List(ctx, hosts.ListQuery{Dataset: pool, Recursive: true})
		done()
		if err != nil {
			return err
		}
		for _, d := range l.Datasets {
			text := ""
			role, roleErr := zfs.RoleIn(d.Properties)
			if o, known, err := replicate.Recorded(d); known && err == nil && o.Job == name {
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
				commands = append(commands, e.Command("promote "+name+" "+d.Name))
			}
		}
	}
	if len(found) == 0 {
		return fault.Refusef("name the dataset of the copy: "+e.Command("promote "+name+" DATASET"), "no dataset of this host is recorded as a copy of job %q", name)
	}
	all := len(found)
	found = found[:min(all, maxListedCopies)]
	return fault.Refusef(strings.Join(commands, "\n"), "the copy is not named, and any source can claim job %q; %d on this host: %s", name, all, strings.Join(found, ", "))
}

// JobOfCopy returns a job for the promotion of a copy on this host whose job is not in the job
// file. The record of the source on the copy names it.
func JobOfCopy(ctx context.Context, e *session.Env, name, dataset string) (*replicate.Job, error) {
	if _, err := zfs.ParseDataset(dataset); err != nil {
		return nil, err
	}
	l, err := e.Hosts.Get("", &(&replicate.Transfer{}).Settings).List(ctx, hosts.ListQuery{Dataset: dataset})
	if err != nil {
		return nil, err
	}
	d := l.Find(dataset)
	if d == nil || len(l.Datasets) == 0 {
		return nil, fault.Refusef("list the copies of this host: "+zfs.CommandLine([]string{"zfs", "get", "-s", "local", "-o", "name,value", zfs.OriginProperty}), "%s: no such dataset", dataset)
	}
	o, known, err := replicate.Recorded(d)
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
