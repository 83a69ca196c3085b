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
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/disk"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// Preview describes the next run of a job.
type Preview struct {
	Job    string `json:"job"`
	Source string `json:"source"`
	// Switched is when a fail over made a copy the source; zero: the direction is that of the job file.
	Switched  time.Time `json:"switched,omitzero"`
	Datasets  int       `json:"datasets"`
	Local     bool      `json:"alone,omitempty"` // the job has no target
	Snapshots []string  `json:"snapshots"`       // that the run would take
	// Frozen lists the applications that the run would freeze.
	Frozen   []freeze.Application `json:"frozen,omitempty"`
	Targets  []*TargetPreview     `json:"targets"`
	Prunings []*decision.Pruning  `json:"prunings"` // after the transfers
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
	Renames []*decision.CopyRename `json:"renames,omitempty"`
	Error   string                 `json:"error,omitempty"`
	Hint    string                 `json:"hint,omitempty"`
	// Writable are existing copies that can be changed, and Protect is the command against that.
	Writable *decision.WritableCopies `json:"writable,omitempty"`
	Protect  string                   `json:"protect,omitempty"`
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
		slices.ContainsFunc(p.Prunings, func(r *decision.Pruning) bool { return r.Error != "" }) {
		return fault.Failf("", "job %q: %s", p.Job, cmp.Or(p.Error, "the next run would partly fail: see above"))
	}
	if slices.ContainsFunc(p.Denied, func(d Denied) bool { return !d.Harmless }) {
		return fault.Failf("", "job %q: a later run would fail: see above", p.Job)
	}
	return nil
}

// Preview connects to all hosts of a job and plans its next run. It changes nothing.
func (r *Runner) Preview(ctx context.Context, j *replicate.Job) (*Preview, error) {
	s, err := r.Env.Open(j, statedir.Peek(r.Env.StateDir, j.Name))
	if err != nil {
		return nil, err
	}
	before := r.newPass(s, order{})
	disks := disk.Find(ctx, s, before.rec.Started, before.ledger.Locker()) // first: a command on a suspended pool would hang
	s, promoted, roleErr := checkRoles(ctx, s, usable(disks, reachable(s, withheld(before, nil))))
	j = s.Job
	out := &Preview{Job: j.Name, Source: j.Source, Switched: s.State.PlaceSince, Local: len(j.Targets) == 0, Snapshots: []string{}, Targets: []*TargetPreview{}, Prunings: []*decision.Pruning{}}
	var notifyErr error
	if out.Notify, notifyErr = previewNotify(j); notifyErr != nil {
		out.Error, out.Hint = notifyErr.Error(), fault.HintOf(notifyErr)
	}
	p := r.newPass(s, order{})
	p.rec.Started = before.rec.Started // a login takes seconds
	targets := usable(disks, reachable(s, withheld(p, nil)))
	var v *decision.Survey
	if err = roleErr; err == nil {
		v, err = previewSource(ctx, p, promoted)
	}
	if err != nil {
		err = errors.Join(err, notifyErr)
		out.Error, out.Hint = err.Error(), fault.HintOf(err)
		return out, ctx.Err()
	}
	planRenames(ctx, p, v, targets)
	out.Datasets = len(v.Source.Datasets)
	due := v.DueSnapshots()
	out.Snapshots, out.Frozen = append(out.Snapshots, due.Names...), due.Frozen
	out.Denied = deniedFreezes(ctx, s, due.Unmatched)
	taken := withSnapshots(*v.Source, out.Snapshots)
	v.Source = &taken
	ends := decider{s: s, v: &decision.RunState{Survey: v}, note: p.journal.Note, expected: map[string]map[string]string{}}
	var plans []planned
	for _, t := range s.Targets {
		b, seen := previewTarget(ctx, p, disks, t, v)
		if !b.absent && b.err == nil && b.result.Report.Plan != nil {
			plans = append(plans, planned{t, b.result.Report.Plan, firstPlan(p, t, v, &b.result.Target), b.result.Target})
		}
		if !b.absent {
			ends.expected[t.Name] = b.predict(&taken)
		}
		out.Targets = append(out.Targets, seen)
		ends.v.Targets = append(ends.v.Targets, b.targetState())
	}
	out.Denied = append(out.Denied, denied(ctx, s)...)
	d := ends.decide(ctx)
	out.Prunings = append(out.Prunings, d.Prunings...)
	var sides sync.WaitGroup // on different hosts
	for _, of := range out.Prunings {
		sides.Go(func() { showHeld(ctx, s, of, ends.expected[of.Side], releasedHolds(of.Side, d.HoldChanges)) })
	}
	sides.Wait()
	out.Unlimited = j.WithoutRetention()
	out.Drill = drillPreview(s, ends.v.Targets)
	out.Delegations = delegations(ctx, s, v.Source, plans)
	return out, ctx.Err()
}

// previewSource lists the source, and refuses what a run refuses. promoted reports that a fail over made it the source.
func previewSource(ctx context.Context, p *pass, promoted bool) (*decision.Survey, error) {
	v, err := survey(ctx, p.s, p.rec.Started)
	if err != nil {
		return nil, err
	}
	if err := v.CheckTaking(); err != nil {
		return nil, err
	}
	v.Promoted = promoted
	return v, confirm(ctx, p.s, v, p.journal.Note)
}

// previewTarget plans the next transfer to a target.
func previewTarget(ctx context.Context, p *pass, disks *disk.Set, t *session.Side, v *decision.Survey) (*batch, *TargetPreview) {
	d := disks.Of(t)
	if b := withoutDisk(disks, t); b != nil {
		seen := &TargetPreview{Target: t.Name, To: t.Target.To, Disk: d.Preview()}
		if b.err != nil {
			seen.Error, seen.Hint = b.err.Error(), fault.HintOf(b.err)
		}
		return b, seen
	}
	b := &batch{to: t, result: &send.BatchResult{Report: &send.Report{}}, err: checkExcluded(p.s, t, v)}
	if b.err == nil {
		req := request(p, t, v)
		req.Request.DryRun = true
		b.run(ctx, p, &req)
	}
	seen := b.preview()
	if len(seen.Exposed) > 0 {
		seen.Drill = drillCommand(p.s)
	}
	if d != nil {
		seen.Disk = d.Preview()
	}
	seen.Excluded = len(v.Excluded[t.Name])
	if r := v.Renames[t.Name]; r != nil {
		seen.Renames = r.Copies
	}
	if b.err == nil {
		if seen.Writable = decision.Writable(v, t.Target, &b.result.Target); seen.Writable != nil {
			seen.Protect = seen.Writable.Command(t.Host.At())
		}
	}
	return b, seen
}

// drillPreview returns nil if the job has no drills.
func drillPreview(s *session.Session, targets []*decision.TargetState) *DrillPreview {
	if !s.Job.HasDrills() {
		return nil
	}
	d := &DrillPreview{Schedule: s.Job.DrillSchedule()}
	if e, err := calendar.Parse(d.Schedule); err == nil {
		d.Next, _ = e.Next(s.Env.Now())
	}
	for _, t := range targets {
		if s.Job.DrillAt(t.Target).KeyFile != "" {
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
func releasedHolds(side string, all []*decision.HoldChange) map[string]uint64 {
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

func (b *batch) preview() *TargetPreview {
	p := &TargetPreview{Target: b.to.Name, To: b.to.Target.To, Plan: b.result.Report.Plan, Wire: b.result.Report.Wire}
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
