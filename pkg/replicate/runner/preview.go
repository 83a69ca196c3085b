package runner

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/freeze"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/disk"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// Preview describes the next run of a job.
type Preview struct {
	Job       string   `json:"job"`
	Source    string   `json:"source"`
	Datasets  int      `json:"datasets"`
	Local     bool     `json:"alone,omitempty"` // the job has no target
	Snapshots []string `json:"snapshots"`       // that the run would take
	// Frozen lists the applications that the run would freeze.
	Frozen   []freeze.Application `json:"frozen,omitempty"`
	Targets  []*TargetPreview     `json:"targets"`
	Prunings []*replicate.Pruning `json:"prunings"` // after the transfers
	Denied   []Denied             `json:"denied,omitempty"`
	// Unlimited lists the sides that keep all snapshots: replicate.SourceSide, or names of targets.
	Unlimited []string `json:"no_retention,omitempty"`
	// Delegations concern hosts where the job does not run as root.
	Delegations []*Delegation `json:"delegations,omitempty"`
	// Drill has the next drill, and the copies it cannot verify because their key is not loaded
	// and no key_file is set.
	Drill *DrillPreview `json:"drill,omitempty"`
	// Notify is nil if runs send no messages.
	Notify *NotifyPreview `json:"notify,omitempty"`
	Error  string         `json:"error,omitempty"`
	Hint   string         `json:"hint,omitempty"`
}

// DrillPreview is the part of a preview about drills.
type DrillPreview struct {
	Schedule string    `json:"schedule,omitempty"`
	Next     time.Time `json:"next,omitzero"`
	Locked   []string  `json:"locked,omitempty"` // "target: dataset"
}

// TargetPreview is the part of a preview about one target.
type TargetPreview struct {
	Target   string            `json:"target"`
	To       string            `json:"to"`
	Plan     *plan.Plan        `json:"plan,omitempty"`
	Wire     connect.Report    `json:"wire"`
	Excluded int               `json:"left_out,omitempty"` // datasets of the job that the target excludes
	Refused  []outcome.Dataset `json:"refused,omitempty"`
	// Renames are copies whose source dataset was renamed.
	Renames []*replicate.CopyRename `json:"renames,omitempty"`
	Error   string                  `json:"error,omitempty"`
	Hint    string                  `json:"hint,omitempty"`
	// Writable are existing copies that can be changed, and Protect is the command against that.
	Writable *replicate.WritableCopies `json:"writable,omitempty"`
	Protect  string                    `json:"protect,omitempty"`
	// Exposed are copies whose roles an earlier version changed, and Drill is the command that compares them.
	Exposed []string `json:"exposed,omitempty"`
	Drill   string   `json:"drill,omitempty"`
	// Disk is set for a target on a disk. If the disk is not imported, there is no Plan.
	Disk *disk.Preview `json:"disk,omitempty"`
}

// Err returns an error, for the exit code, if the next run or a later one would fail in any
// part.
func (p *Preview) Err() error {
	if p.Error != "" || slices.ContainsFunc(p.Targets, func(t *TargetPreview) bool { return t.Error != "" || len(t.Refused) > 0 }) ||
		slices.ContainsFunc(p.Prunings, func(r *replicate.Pruning) bool { return r.Error != "" }) {
		return fault.Failf("", "job %q: %s", p.Job, cmp.Or(p.Error, "the next run would partly fail: see above"))
	}
	if slices.ContainsFunc(p.Denied, func(d Denied) bool { return !d.Harmless }) {
		return fault.Failf("", "job %q: a later run would fail: see above", p.Job)
	}
	return nil
}

// Preview connects to all hosts of a job and plans its next run. It changes nothing.
func (r *Runner) Preview(ctx context.Context, j *replicate.Job) (*Preview, error) {
	w, err := r.newRun(j, statedir.Peek(r.Env.StateDir, j.Name))
	if err != nil {
		return nil, err
	}
	p := &Preview{Job: j.Name, Source: j.Source, Local: len(j.Targets) == 0, Snapshots: []string{}, Targets: []*TargetPreview{}, Prunings: []*replicate.Pruning{}}
	var notifyErr error
	if p.Notify, notifyErr = previewNotify(j); notifyErr != nil {
		p.Error, p.Hint = notifyErr.Error(), fault.HintOf(notifyErr)
	}
	w.findDisks(ctx) // first: a command on a suspended pool would hang
	v, err := w.survey(ctx)
	if err == nil {
		err = cmp.Or(r.standby(j), w.checkRoles(ctx, w.session.Source.At.Name))
	}
	if err != nil {
		err = errors.Join(err, notifyErr)
		p.Error, p.Hint = err.Error(), fault.HintOf(err)
		return p, ctx.Err()
	}
	if err := w.confirm(ctx, v); err != nil {
		p.Error, p.Hint = err.Error(), fault.HintOf(err)
		return p, ctx.Err()
	}
	w.planRenames(ctx, v)
	p.Datasets = len(v.Source.Datasets)
	due := v.DueSnapshots()
	p.Snapshots, p.Frozen = append(p.Snapshots, due.Names...), due.Frozen
	p.Denied = w.deniedFreezes(ctx, due.Unmatched)
	taken := withSnapshots(*v.Source, p.Snapshots)
	v.Source, w.expected = &taken, map[string]map[string]string{}
	after := &replicate.RunState{Survey: v}
	var plans []planned
	for _, t := range w.session.Targets {
		if b := w.withoutDisk(t); b != nil {
			p.Targets = append(p.Targets, previewAbsent(b, w.disk(t)))
			after.Targets = append(after.Targets, b.targetState())
			continue
		}
		b := &batch{side: t, result: &send.BatchResult{Report: &send.Report{}}, err: checkExcluded(w, t, v)}
		if b.err == nil {
			req := w.request(t, v)
			req.Request.DryRun = true
			b = runBatch(ctx, w.Env.Hosts, t, req, &sendReporter{Reporter: w.Env.ReportTo(w.session.Job.Name, t.Name), w: w, to: t.Name})
		}
		seen := b.preview()
		if len(seen.Exposed) > 0 {
			seen.Drill = w.drillCommand()
		}
		p.Targets = append(p.Targets, seen)
		if d := w.disk(t); d != nil {
			p.Targets[len(p.Targets)-1].Disk = d.Preview()
		}
		p.Targets[len(p.Targets)-1].Excluded = len(v.Excluded[t.Name])
		if r := v.Renames[t.Name]; r != nil {
			p.Targets[len(p.Targets)-1].Renames = r.Copies
		}
		if now := p.Targets[len(p.Targets)-1]; b.err == nil {
			if now.Writable = v.Writable(t.Target, &b.result.Target); now.Writable != nil {
				now.Protect = now.Writable.Command(t.Host.At())
			}
		}
		if b.err == nil && b.result.Report.Plan != nil {
			plans = append(plans, planned{t, b.result.Report.Plan, w.firstPlan(t, v, &b.result.Target), b.result.Target})
		}
		w.expected[t.Name] = b.predict(&taken)
		after.Targets = append(after.Targets, b.targetState())
	}
	p.Denied = append(p.Denied, w.denied(ctx)...)
	d := w.decide(ctx, after)
	p.Prunings = append(p.Prunings, d.Prunings...)
	var sides sync.WaitGroup // on different hosts
	for _, side := range p.Prunings {
		sides.Go(func() { w.showHeld(ctx, side, releasedHolds(side.Side, d.HoldChanges)) })
	}
	sides.Wait()
	p.Unlimited = w.session.Job.WithoutRetention()
	p.Drill = w.drillPreview(after.Targets)
	p.Delegations = w.delegations(ctx, v.Source, plans)
	return p, ctx.Err()
}

// drillPreview returns nil if the job has no drills.
func (w *jobRun) drillPreview(targets []*replicate.TargetState) *DrillPreview {
	if !w.session.Job.HasDrills() {
		return nil
	}
	d := &DrillPreview{Schedule: w.session.Job.DrillSchedule()}
	if e, err := calendar.Parse(d.Schedule); err == nil {
		d.Next, _ = e.Next(w.Env.Now())
	}
	for _, t := range targets {
		if w.session.Job.DrillAt(t.Target).KeyFile != "" {
			continue
		}
		for i := 0; !t.Absent && i < len(t.Listing.Datasets); i++ {
			c := t.Listing.Datasets[i]
			if c.Encrypted() && !c.KeyLoaded() {
				d.Locked = append(d.Locked, t.Name+": "+c.Name)
			}
		}
	}
	return d
}

// predict applies the plan to the listing of the target. It maps the snapshots that will arrive to
// those on the source, by full name.
func (b *batch) predict(source *zfs.Listing) map[string]string {
	if b.err != nil {
		return nil
	}
	coming, before := map[string]string{}, b.result.Target.ByName()
	b.result.Target = b.result.Report.Plan.Predict(*source, b.result.Target)
	after := b.result.Target.ByName()
	for _, d := range b.result.Datasets {
		copied, was := after[d.Target], before[d.Target]
		if d.Err != nil || copied == nil {
			continue
		}
		if v, ok := copied.SnapshotOf(d.Final.GUID); ok {
			d.NameOnTarget = v.Name
		}
		old := 0
		if was != nil {
			old = len(was.Versions)
		}
		for _, v := range copied.Versions[old:] {
			coming[v.In(d.Target)] = v.In(d.Source)
		}
	}
	return coming
}

// releasedHolds counts, by snapshot, the job's own holds on a side that will be released.
func releasedHolds(side string, all []*replicate.HoldChange) map[string]uint64 {
	out := map[string]uint64{}
	for _, h := range all {
		var drop []string
		switch side {
		case replicate.SourceSide:
			drop = h.OnSource.Drop
		case h.Target:
			drop = h.OnTarget.Drop
		}
		for _, name := range drop {
			out[name]++
		}
	}
	return out
}

// previewAbsent returns the preview of a target whose disk is not imported.
func previewAbsent(b *batch, d *disk.Disk) *TargetPreview {
	p := &TargetPreview{Target: b.Name, To: b.Target.To, Disk: d.Preview()}
	if b.err != nil {
		p.Error, p.Hint = b.err.Error(), fault.HintOf(b.err)
	}
	return p
}

func (b *batch) preview() *TargetPreview {
	p := &TargetPreview{Target: b.Name, To: b.Target.To, Plan: b.result.Report.Plan, Wire: b.result.Report.Wire}
	p.Wire.Why = replicate.Keys(p.Wire.Why)
	if b.err != nil {
		p.Error, p.Hint = b.err.Error(), fault.HintOf(b.err)
		return p
	}
	if p.Plan != nil {
		p.Exposed = p.Plan.Exposed()
	}
	for _, d := range b.result.Datasets {
		if d.Err != nil {
			p.Refused = append(p.Refused, outcome.Dataset{Source: d.Source, Target: d.Target, Outcome: outcome.Refused,
				Error: d.Err.Error(), Hint: fault.HintOf(d.Err), Conflict: d.Conflict})
		}
	}
	return p
}

// withSnapshots returns a copy of a listing with the snapshots that a run would take.
func withSnapshots(l zfs.Listing, snapshots []string) zfs.Listing {
	names := map[string]string{}
	for _, full := range snapshots {
		if dataset, name, err := zfs.ParseSnapshot(full); err == nil { // cannot fail: the parts were checked
			names[dataset] = name
		}
	}
	return plan.Simulate(l, func(dataset string) string { return names[dataset] })
}
