package runner

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/disk"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
)

// defaultParallel is how many datasets are sent concurrently. Few readers suit a pool of spinning disks
// best.
const defaultParallel = 2

// sendAll sends to all targets concurrently, except to the held ones. Each batch calls permit before it changes
// anything, and ends with its error.
func sendAll(ctx context.Context, p *pass, v *decision.Survey, disks *disk.Set, held map[string]string, permit func() error) []*batch {
	parallel := cmp.Or(p.s.Job.Parallel, defaultParallel)
	limit := send.NewGate(parallel)
	all, sent := make([]*batch, len(p.s.Targets)), map[*batch]*send.Batch{}
	for i, t := range p.s.Targets {
		b := &batch{to: t, result: &send.BatchResult{}, held: held[t.Name]}
		if all[i] = b; b.held != "" {
			continue
		}
		if unused := withoutDisk(disks, t); unused != nil {
			all[i] = unused
			continue
		}
		if len(v.DatasetsFor(t.Name)) == 0 { // all is up to date, or the target excludes all datasets
			b.err = checkExcluded(p.s, t, v)
			continue
		}
		req := request(p, t, v)
		req.Request.Parallel, req.Request.Gate = parallel, limit
		if len(v.Unchanged) > 0 {
			req.Copies = v.CopiesToList(t.Target)
		}
		req.BeforeMove = func(ctx context.Context, planned *plan.Plan) error {
			err := permit()
			if err == nil {
				b.protected = protect(ctx, p, t, v, planned)
			}
			return err
		}
		sent[b] = &req
	}
	var wg sync.WaitGroup
	for b, req := range sent { // after the last request: a batch changes the state
		wg.Go(func() {
			open, cancel := untilClosed(ctx, p, b.to)
			defer cancel()
			watched, stop := b.to.Watched(open)
			defer stop()
			b.run(watched, p, req)
			b.err = disks.Of(b.to).Lost(watched, b.firstError(), b.err)
			b.hold(open)
		})
	}
	wg.Wait()
	return all
}

// checkExcluded returns an error if a target excludes all datasets of the job.
func checkExcluded(s *session.Session, t *session.Side, v *decision.Survey) error {
	all := len(v.Source.Datasets) + len(v.Unchanged)
	if all == 0 || len(v.Excluded[t.Name]) < all { // a relay may wait for all
		return nil
	}
	return errAllExcluded(&t.Target.Selection, s.Source, all)
}

// request returns the batch for one target.
func request(p *pass, t *session.Side, v *decision.Survey) send.Batch {
	survey, s, sent := *v.Source, p.s, p.s.Job.SnapshotLimitsOf(t.Target)
	survey.Datasets = v.DatasetsFor(t.Name)
	var since time.Time
	if sent.Since > 0 {
		since = v.Started.Add(-time.Duration(sent.Since))
	}
	carry, named := t.Target.Properties.Carries()
	b := send.Batch{Survey: survey, Renames: renamesAt(v, t.Name), Request: send.Request{
		Source: s.Source.At, Target: t.At,
		Plan: plan.Request{
			Source: v.Root, Target: t.At.Name, Recursive: s.Job.Recursive,
			First:  s.Job.FirstAt(t.Target),
			Newest: sent.Newest, Since: since,
			IncludeSnapshots: s.Scope.Patterns(), OnlySnapshots: t.Target.Snapshots.Only, Decrypt: t.Transfer.Decrypt,
			CarryProperties: carry, CarryNamed: named, Set: t.Target.Properties.Set, Exclude: t.Target.Properties.Exclude,
		},
		Settings: t.Transfer.Settings, Clock: s.Env.Now, Retries: s.Job.RetriesOrDefault(), SkipChecks: t.Transfer.SkipChecks,
	}}
	// Only retention needs more than the most recent snapshots.
	b.Newest = t.Target.Retention == nil && !t.Target.MirrorsSnapshots()
	v.AddExcluded(t.Target, &b.Request.Plan)
	v.AllowRename(t.Target, &b.Request.Plan)
	b.Review = func(planned *plan.Plan, st plan.State) {
		p.ledger.Read(func() { review(p, t, v, planned, &st) })
	}
	return b
}

// review completes the plan for a target.
func review(p *pass, t *session.Side, v *decision.Survey, planned *plan.Plan, st *plan.State) {
	for _, news := range v.Review(t.Target, planned, st) {
		p.journal.Log("%s", news)
	}
	for _, name := range planned.Exposed() {
		planned.Notes = append(planned.Notes, name+": its role changed, and there is no record that block sizes were compared; to find out whether files lost data: "+drillCommand(p.s))
	}
	for i := range planned.Conflicts {
		if c := &planned.Conflicts[i]; c.ID == plan.FirstRefused {
			once := func(first plan.First) string {
				return p.s.Env.Command(strings.Join([]string{"run", "--first", string(first), p.s.Job.Name}, " "))
			}
			c.Remedy = "to send all snapshots once: " + once(plan.FirstAll) + "\nto send only the most recent one once: " + once(plan.FirstNewest)
		}
	}
}

// drillCommand returns the command that drills the copies of the job.
func drillCommand(s *session.Session) string { return s.Env.Command("drill " + s.Job.Name) }

// batch is the transfer to one target, and its result.
type batch struct {
	to      *session.Side
	result  *send.BatchResult
	err     error // of the batch as a whole
	seconds float64
	// held describes the pause or closed bandwidth window because of which nothing was sent, and
	// stopped the window that interrupted the batch; "" = none did.
	held, stopped string
	absent        bool // the target is on a disk that the run does not use
	refused       bool // err refuses the disk itself
	protected     protected
}

// firstError returns the error of the batch, or else of a dataset.
func (b *batch) firstError() error {
	for i := 0; b.err == nil && i < len(b.result.Datasets); i++ {
		if err := b.result.Datasets[i].Err; err != nil {
			return err
		}
	}
	return b.err
}

// run sends, or with a dry run plans, the batch.
func (b *batch) run(ctx context.Context, p *pass, req *send.Batch) {
	began := time.Now()
	rep := &targetReporter{Reporter: p.s.Env.ReportTo(p.s.Job.Name, b.to.Name), prefix: p.s.Job.Name + " to " + b.to.Name + ": "}
	b.result, b.err = send.RunBatch(ctx, *req, p.s.Env.Hosts, rep)
	for _, d := range b.result.Datasets {
		from, to := endpoint.Endpoint{Host: req.Request.Source.Host, Name: d.Source}, endpoint.Endpoint{Host: b.to.At.Host, Name: d.Target}
		d.Err = replicate.InKeysOf(d.Err, from, to)
	}
	b.err, b.seconds = replicate.InKeys(b.err), time.Since(began).Seconds()
}

// targetState returns the target's state after the batch.
func (b *batch) targetState() *decision.TargetState {
	s := &decision.TargetState{Target: b.to.Target, Failed: b.err != nil || b.absent || b.held != "", Absent: b.absent, Listing: &b.result.Target, Partial: send.NeededByResume(&b.result.Target), Cut: map[string]bool{}}
	for _, d := range b.result.Datasets {
		switch {
		case d.Err != nil: // an interrupted receive may still be running on the target
			s.Cut[d.Source] = fault.ClassOf(d.Err) == fault.Interrupted
		case d.NameOnTarget != "":
			s.Arrived = append(s.Arrived, decision.SentDataset{Source: d.Source, Target: d.Target, Newest: d.Final, NewestOnTarget: d.NameOnTarget, Sent: d.Streams > 0})
		}
	}
	return s
}

// record returns the target's part of the run's record. idle counts the datasets that were not
// sent because they are unchanged.
func (b *batch) record(idle int) *statedir.TargetRun {
	r := &statedir.TargetRun{Target: b.to.Name, To: b.to.Target.To, Seconds: b.seconds, Unchanged: idle, Paused: cmp.Or(b.held, b.stopped)}
	if b.held != "" || b.absent && b.err == nil {
		r.Unchanged = 0
		return r
	}
	if b.err != nil {
		r.Outcome, r.Error, r.Hint, r.RefusedDisk = outcome.Of(b.err), b.err.Error(), fault.HintOf(b.err), b.refused
		for _, d := range b.result.Datasets { // keep only errors of their own, not consequences of b.err
			if dr := d.WithResult(d.Err); dr.Outcome == outcome.Failed || dr.Outcome == outcome.Refused {
				r.Failed++
				r.Datasets = append(r.Datasets, dr)
			}
		}
		return r
	}
	r.Outcome = outcome.UpToDate
	for _, d := range b.result.Datasets {
		if d.Err == nil && d.Streams == 0 {
			r.Unchanged++
			continue
		}
		dr := d.WithResult(d.Err)
		r.Bytes += d.Bytes
		switch {
		case b.isHeld(d.Err):
			r.Held++
			continue
		case d.Err == nil:
			r.Sent++
		default:
			r.Failed++
		}
		r.Outcome = outcome.Worst(r.Outcome, dr.Outcome)
		r.Datasets = append(r.Datasets, dr)
	}
	return r
}

// updateState writes the result into the state. missed has the errors of datasets whose snapshot could
// not be taken: older snapshots arrived, but the due one did not.
func (b *batch) updateState(v *decision.Survey, missed map[string]error) {
	st := v.State
	if b.held != "" {
		for _, d := range v.DatasetsFor(b.to.Name) {
			a := st.Copy(d.Name, b.to.Name)
			a.Target = cmp.Or(a.Target, b.to.Target.CopyOf(v.Root, d.Name))
			a.Hold(v.Started)
		}
		return
	}
	for _, name := range v.UnchangedAt(b.to.Name) {
		if v.RenamedWithParent(b.to.Target, name) {
			continue // the next run notices the missing copy and sends it
		}
		a := st.Copy(name, b.to.Name)
		a.Bytes, a.Seconds = 0, 0
		a.Record(v.Started, nil)
	}
	if b.err != nil {
		for _, d := range v.DatasetsFor(b.to.Name) {
			a := st.Copy(d.Name, b.to.Name)
			a.Bytes, a.Seconds = 0, 0
			a.Record(v.Started, b.err)
		}
		return
	}
	copies, sources := b.result.Target.ByName(), v.Source.ByName()
	for _, d := range b.result.Datasets {
		a := st.Copy(d.Source, b.to.Name)
		a.Bytes, a.Seconds = d.Bytes, d.Seconds
		if d.Err == nil || !a.Renamed { // otherwise the copy still has the former name
			a.Target, a.Renamed = d.Target, false
		}
		if b.isHeld(d.Err) { // the next run resumes it
			a.Hold(v.Started)
			continue
		}
		a.Record(v.Started, cmp.Or(d.Err, missed[d.Source]))
		if d.Err != nil {
			continue
		}
		a.Sending = 0
		a.Lacks, a.LacksHint = "", ""
		if d.Unset != nil {
			a.Lacks, a.LacksHint = d.Unset.Error(), fault.HintOf(d.Unset)
		}
		if copied := copies[d.Target]; copied != nil {
			a.EncryptionRoot = copied.Get("encryptionroot")
		}
		if source := sources[d.Source]; source != nil {
			known := st.Dataset(d.Source)
			switch {
			case d.Full > 0:
				a.OriginalGUID = source.GUID
			case a.OriginalGUID == 0:
				a.OriginalGUID = known.GUID
			}
			known.Identify(source)
		}
	}
}

// targetReporter is a send.Reporter whose messages start with the job and the target.
type targetReporter struct {
	send.Reporter
	prefix string
}

func (r *targetReporter) Log(message string) { r.Reporter.Log(replicate.Keys(r.prefix + message)) }
