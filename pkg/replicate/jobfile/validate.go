package jobfile

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/transport"
)

// maxKept limits the number of snapshots in a rule.
const maxKept = 100_000

// Validate checks the values that the decoder accepted, and changes none. Errors name job and key.
func Validate(f *replicate.File) error { return validate(f, locations{}) }

// validate is Validate with line numbers for messages.
func validate(f *replicate.File, at locations) error {
	var errs []error
	if f.Jobs == nil { // for example a truncated file
		errs = append(errs, fault.Usagef("zxfer replicate init writes one\nif the file is to have no jobs, write: job = []", "the file has no [[job]]"))
	}
	if t := f.Metrics.Textfile; t != "" && (!path.IsAbs(t) || path.Ext(t) != ".prom") {
		errs = append(errs, fault.Usagef("name a file such as /var/lib/node_exporter/zxfer.prom", "metrics.textfile %q is not an absolute path that ends in .prom", t))
	}
	of := &faults{}
	of.notify(&f.Notify, "job")
	errs = append(errs, of.all()...)
	seen := map[string]bool{}
	for i := range f.Jobs {
		j := &f.Jobs[i]
		if seen[j.Name] && j.Name != "" {
			errs = append(errs, fmt.Errorf("two jobs are named %q", j.Name))
		}
		seen[j.Name] = true
	}
	errs = append(errs, overlappingJobs(f)...)
	for i, err := range errs {
		errs[i] = fmt.Errorf("%s%w", at.file(), err)
	}
	for i := range f.Jobs {
		faults := jobFaults(&f.Jobs[i])
		slices.SortStableFunc(faults, func(a, b *keyError) int { return cmp.Compare(at.line(i, a.key), at.line(i, b.key)) })
		for _, err := range faults {
			errs = append(errs, fmt.Errorf("%s%s%s: %w", at.key(i, err.key), labeled("job", f.Jobs[i].Name, i), at.suffix(i), err))
		}
	}
	for _, err := range sharedPings(f) {
		errs = append(errs, fmt.Errorf("%s%w", at.file(), err))
	}
	return errors.Join(errs...)
}

// overlappingJobs reports two jobs that would take or prune each other's snapshots.
func overlappingJobs(f *replicate.File) []error {
	var errs []error
	for i := range f.Jobs {
		for k := range i {
			a, b := &f.Jobs[k], &f.Jobs[i]
			if a.Snapshots.Take == "" || b.Snapshots.Take == "" || !overlaps(a, b) {
				continue
			}
			x, errX := a.Scope()
			y, errY := b.Scope()
			if errX == nil && errY == nil && x.Naming().Pattern() == y.Naming().Pattern() {
				errs = append(errs, fault.Usagef("put {job} into snapshots.take of both",
					"jobs %q and %q take snapshots of the same datasets with the same names: each would destroy the other's", a.Name, b.Name))
			}
		}
	}
	return errs
}

func overlaps(j *replicate.Job, o *replicate.Job) bool {
	a, b := j.Source, o.Source
	return a == b || j.Recursive && strings.HasPrefix(b, a+"/") || o.Recursive && strings.HasPrefix(a, b+"/")
}

// jobFaults returns all errors in a job.
func jobFaults(j *replicate.Job) []*keyError {
	f := &faults{}
	f.checkName(j.Name)
	f.endpoint("source", j.Source, false)
	f.choice(&j.Selection, j.Recursive)
	for _, dir := range j.MountBelow {
		if !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" {
			f.add("mount_below", fault.Usagef("write a directory such as /srv/data", "mount_below: %q is not an absolute path below /", dir))
		}
	}
	f.sent(&j.Snapshots.SnapshotLimits)
	f.patterns("snapshots.adopt", j.Snapshots.Adopt)
	if _, err := calendar.Parse(j.Schedule); j.Schedule != "" && err != nil {
		f.addf("schedule", "schedule: %w", err)
	}
	if err := CheckUser(j.User); j.User != "" && err != nil {
		f.addf("user", "user: %w", err)
	}
	if j.Schedule == "" && j.Jitter+j.Grace != 0 {
		f.addf("jitter", "jitter and grace have no effect without a schedule")
	}
	if _, err := j.Scope(); err != nil {
		f.addf("snapshots", "snapshots: %w", err)
	}
	if j.Snapshots.SkipUnchanged && j.Snapshots.Take == "" {
		f.addf("snapshots.skip_unchanged", "snapshots.skip_unchanged has no effect without snapshots.take")
	}
	f.grid("retention", j.Retention)
	f.number("prune_limit", j.PruneLimitOrDefault(), 0, maxKept)
	if j.Parallel != 0 {
		f.number("parallel", j.Parallel, 1, transport.MaxParallel)
	}
	f.number("retries", j.RetriesOrDefault(), 0, transport.MaxRetries)
	f.first(j.First)
	f.oneOf("holds", j.Holds, "both", "source", "target", "none")
	f.oneOf("bookmarks", j.Bookmarks, "sent", "none")
	f.transfer(&j.Transfer)
	f.drill(j.Drill)
	freezeFaults(j, f)
	relayFaults(j, f)
	targetFaults(j, f)
	if len(j.Targets) == 0 {
		localFaults(j, f)
	}
	for i := range j.Before {
		f.hook("before", &j.Before[i])
	}
	for i := range j.After {
		f.hook("after", &j.After[i])
	}
	if j.Alert != nil {
		f.hook("alert", j.Alert)
	}
	f.notify(j.Notify, j.Name)
	return f.errs
}

func targetFaults(j *replicate.Job, f *faults) {
	seen, addresses := map[string]bool{}, map[string]string{}
	for i := range j.Targets {
		t := &j.Targets[i]
		f.at, f.path = labeled("target", t.Name, i)+": ", fmt.Sprintf("target[%d].", i)
		f.checkName(t.Name)
		f.endpoint("to", t.To, true)
		if to := selfTarget(j, t); to != "" {
			f.addf("to", "to %q is %s, which is part of the source", t.To, to)
		}
		f.grid("retention", t.Retention)
		f.first(t.First)
		f.oneOf("on_divergence", t.OnDivergence, "refuse", "rotate")
		f.oneOf("on_rename", t.OnRename, "refuse", "follow")
		f.mirror(j, t)
		sentOnFaults(t, f)
		f.choice(&t.Selection, j.Recursive)
		f.sent(&t.Snapshots.SnapshotLimits)
		f.patterns("snapshots.only", t.Snapshots.Only)
		if t.Transfer != nil {
			f.transfer(t.Transfer)
		}
		f.drill(t.Drill)
		if t.Drill != nil && t.Drill.Schedule != "" {
			f.addf("drill.schedule", "drill.schedule is a key of the job: write it into [job.drill]")
		}
		if t.Drill != nil && t.Drill.Deadline != 0 {
			f.addf("drill.deadline", "drill.deadline is a key of the job: write it into [job.drill]")
		}
		f.addSetting(checkTransport(j, t))
		f.properties(&t.Properties)
		f.disk(j, t)
		f.at = ""
		windowFaults(j, f, t)
		if seen[t.Name] && t.Name != "" {
			f.addf("", "two targets are named %q", t.Name)
		}
		seen[t.Name] = true
		if t.Name == replicate.SourceSide {
			f.addf("", "a target cannot be named %q, which means the source in records and prune", t.Name)
		}
		if t.Disk != nil { // the disk distinguishes targets
			continue
		}
		if same, ok := addresses[t.To]; ok {
			f.addf("", "targets %q and %q are the same dataset, %s", same, t.Name, t.To)
		}
		addresses[t.To] = t.Name
	}
	f.path = ""
	disksFaults(j, f)
}

// selfTarget returns the dataset of a target if it is the source or, for a recursive job, below
// it, else "". It compares host names as written.
func selfTarget(j *replicate.Job, t *replicate.Target) string {
	from, errFrom := endpoint.Parse(j.Source)
	to, errTo := endpoint.Parse(t.To)
	if errFrom != nil || errTo != nil || from.Host != to.Host {
		return ""
	}
	name := t.CopyOf(from.Name, from.Name)
	if name == from.Name || name != "" && j.Recursive && strings.HasPrefix(name, from.Name+"/") {
		return name
	}
	return ""
}

// checkTransport checks that the transport can connect the source with a target. On a single host,
// zxfer uses no network, so any transport is valid.
func checkTransport(j *replicate.Job, t *replicate.Target) error {
	from, errFrom := endpoint.Parse(j.Source)
	to, errTo := endpoint.Parse(t.To)
	if errFrom != nil || errTo != nil || from.Host == to.Host {
		return nil
	}
	return j.TransferTo(t).CheckHosts(from.Local(), to.Local())
}

// localFaults adds errors in a job without targets.
func localFaults(j *replicate.Job, f *faults) {
	if j.Snapshots.Take == "" && j.Retention == nil {
		f.add("", fault.Usagef("add a [[job.target]], snapshots.take or [job.retention]",
			"the job has nothing to do: it has no [[job.target]], snapshots.take or [job.retention]"))
	}
	transfer := j.Transfer
	transfer.RSH, transfer.NoBootstrap = "", false // valid: they reach the source
	if transfer.Wire == transport.NC {
		transfer.Wire, transfer.TrustedLink = "", false // valid: nc needs no zxfer on the source
	}
	for _, k := range []struct {
		key    string
		set    bool
		except string
	}{
		{"snapshots.newest", j.Snapshots.Newest != 0, ""},
		{"snapshots.since", j.Snapshots.Since != 0, ""},
		{"snapshots.latest_only", j.Snapshots.LatestOnly, ""},
		{"first", j.First != "", ""},
		{"parallel", j.Parallel != 0, ""},
		{"retries", j.Retries != nil, ""},
		{"holds", j.Holds != "", ""},
		{"bookmarks", j.Bookmarks != "", ""},
		{"drill", j.Drill != nil, ""},
		{"transfer", !reflect.DeepEqual(transfer, replicate.Transfer{}), ` (except rsh, no_bootstrap and wire = "nc")`},
	} {
		if k.set {
			f.addf(k.key, "%s%s has no effect without a [[job.target]]", k.key, k.except)
		}
	}
}
