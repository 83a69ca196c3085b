package runner

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
)

// defaultParallel is how many datasets are sent concurrently. Few readers suit a pool of spinning disks
// best.
const defaultParallel = 2

// send sends the batches of all targets concurrently. early has listings of targets by listTargets.
func (w *jobRun) send(ctx context.Context, v *replicate.Survey, early map[*side]*earlyListing) []*batch {
	parallel := cmp.Or(w.session.Job.Parallel, defaultParallel)
	g := newGate(parallel)
	copies := map[string][]string{}
	for _, t := range w.session.Targets { // before the first batch starts and changes the state
		if len(v.Unchanged) > 0 && !w.absent(t) {
			copies[t.Name] = v.CopiesToList(t.Target)
		}
	}
	all := make([]*batch, len(w.session.Targets))
	var wg sync.WaitGroup
	for i, t := range w.session.Targets {
		if all[i] = w.heldBatch(t); all[i] != nil {
			continue
		}
		if b := w.withoutDisk(t); b != nil {
			all[i] = b
			continue
		}
		if len(v.DatasetsFor(t.Name)) == 0 { // all is up to date, or the target excludes all datasets
			all[i] = &batch{side: t, result: &send.BatchResult{}, err: checkExcluded(w, t, v)}
			continue
		}
		req := w.request(t, v)
		req.Copies, req.Request.Parallel, req.Request.Gate = copies[t.Name], parallel, g.of(t.Name)
		if l := early[t]; l != nil && l.fits(&req) {
			req.Listed = l.wait
		}
		rep := &sendReporter{Reporter: w.Env.ReportTo(w.session.Job.Name, t.Name), w: w, to: t.Name}
		wg.Go(func() {
			open, cancel := w.untilClosed(ctx, t)
			defer cancel()
			watched, stop := t.Watched(open)
			defer stop()
			all[i] = runBatch(watched, w.Env.Hosts, t, req, rep)
			all[i].err = w.disk(t).Lost(watched, all[i].firstError(), all[i].err)
			all[i].hold(open)
		})
	}
	wg.Wait()
	return all
}

// checkExcluded returns an error if a target excludes all datasets of the job.
func checkExcluded(w *jobRun, t *side, v *replicate.Survey) error {
	all := len(v.Source.Datasets) + len(v.Unchanged)
	if all == 0 || len(v.Excluded[t.Name]) < all { // a relay may wait for all
		return nil
	}
	return errAllExcluded(&t.Target.Selection, w.session.Source, all)
}

// request returns the batch for one target.
func (w *jobRun) request(t *side, v *replicate.Survey) send.Batch {
	survey, sent := *v.Source, w.session.Job.SnapshotLimitsOf(t.Target)
	survey.Datasets = v.DatasetsFor(t.Name)
	var since time.Time
	if sent.Since > 0 {
		since = w.run.Started.Add(-time.Duration(sent.Since))
	}
	carry, named := t.Target.Properties.Carries()
	b := send.Batch{Survey: survey, Renames: renamesAt(v, t.Name), Newest: listsNewest(t), Request: send.Request{
		Source: w.session.Source.At, Target: t.At,
		Plan: plan.Request{
			Source: v.Root, Target: t.At.Name, Recursive: w.session.Job.Recursive,
			First:      w.session.Job.FirstAt(t.Target),
			LatestOnly: sent.LatestOnly, Newest: sent.Newest, Since: since,
			IncludeSnapshots: w.session.Scope.Patterns(), OnlySnapshots: t.Target.Snapshots.Only, Decrypt: t.Transfer.Decrypt,
			CarryProperties: carry, CarryNamed: named, Set: t.Target.Properties.Set, Exclude: t.Target.Properties.Exclude,
		},
		Settings: t.Transfer.Settings, Clock: w.Env.Now, Retries: w.session.Job.RetriesOrDefault(), SkipChecks: t.Transfer.SkipChecks,
	}, BeforeMove: func(ctx context.Context, p *plan.Plan) { w.protect(ctx, t, v, p) }, Review: func(p *plan.Plan, st plan.State) {
		w.shared.Lock()
		defer w.shared.Unlock()
		for _, news := range v.Review(t.Target, p, &st) {
			w.Env.Log(w.session.Job.Name + ": " + news)
		}
		for _, name := range p.Exposed() {
			p.Notes = append(p.Notes, name+": its role changed, and there is no record that block sizes were compared; to find out whether files lost data: "+w.drillCommand())
		}
		for i := range p.Conflicts {
			if c := &p.Conflicts[i]; c.ID == plan.FirstRefused {
				once := func(first plan.First) string {
					return w.Env.Command(strings.Join([]string{"run", "--first", string(first), w.session.Job.Name}, " "))
				}
				c.Remedy = "to send all snapshots once: " + once(plan.FirstAll) + "\nto send only the most recent one once: " + once(plan.FirstNewest)
			}
		}
	}}
	w.shared.Lock() // another target's batch may be writing the state
	defer w.shared.Unlock()
	v.AddExcluded(t.Target, &b.Request.Plan)
	v.AllowRename(t.Target, &b.Request.Plan)
	b.HistoriesAfter = v.HasNews(t.Name)
	return b
}

// drillCommand returns the command that drills the copies of the job.
func (w *jobRun) drillCommand() string { return w.Env.Command("drill " + w.session.Job.Name) }

// listsNewest reports whether only the most recent snapshots of a target are listed. Only retention needs
// the others.
func listsNewest(t *side) bool { return t.Target.Retention == nil && !t.Target.MirrorsSnapshots() }

// batch is the transfer to one target, and its result.
type batch struct {
	*side
	result  *send.BatchResult
	err     error // of the batch as a whole
	seconds float64
	// held describes the pause or closed bandwidth window because of which nothing was sent, and
	// stopped the window that interrupted the batch; "" = none did.
	held, stopped string
	absent        bool // the target is on a disk that the run does not use
	refused       bool // err refuses the disk itself
}

// withoutDisk returns the result for a target whose disk the run cannot use, or nil.
func (w *jobRun) withoutDisk(t *side) *batch {
	d := w.disk(t)
	if d == nil || d.Err == nil && !w.absent(t) {
		return nil
	}
	return &batch{side: t, result: &send.BatchResult{Report: &send.Report{}}, err: d.Err, absent: true, refused: fault.ClassOf(d.Err) == fault.Refused}
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

func runBatch(ctx context.Context, at *hosts.Set, t *side, req send.Batch, rep send.Reporter) *batch {
	began := time.Now()
	res, err := send.RunBatch(ctx, req, at, rep)
	for _, d := range res.Datasets {
		from, to := endpoint.Endpoint{Host: req.Request.Source.Host, Name: d.Source}, endpoint.Endpoint{Host: t.At.Host, Name: d.Target}
		d.Err = replicate.InKeysOf(d.Err, from, to)
	}
	return &batch{side: t, result: res, err: replicate.InKeys(err), seconds: time.Since(began).Seconds()}
}

// targetState returns the target's state after the batch.
func (b *batch) targetState() *replicate.TargetState {
	s := &replicate.TargetState{Target: b.Target, Failed: b.err != nil || b.absent || b.held != "", Absent: b.absent, Listing: &b.result.Target, Partial: send.NeededByResume(&b.result.Target), Cut: map[string]bool{}}
	for _, d := range b.result.Datasets {
		switch {
		case d.Err != nil: // an interrupted receive may still be running on the target
			s.Cut[d.Source] = fault.ClassOf(d.Err) == fault.Interrupted
		case d.NameOnTarget != "":
			s.Arrived = append(s.Arrived, replicate.SentDataset{Source: d.Source, Target: d.Target, Newest: d.Final, NewestOnTarget: d.NameOnTarget, Sent: d.Streams > 0})
		}
	}
	return s
}

// record returns the target's part of the run's record. idle counts the datasets that were not
// sent because they are unchanged.
func (b *batch) record(idle int) *statedir.TargetRun {
	r := &statedir.TargetRun{Target: b.Name, To: b.Target.To, Seconds: b.seconds, Unchanged: idle, Paused: cmp.Or(b.held, b.stopped)}
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
func (b *batch) updateState(v *replicate.Survey, missed map[string]error) {
	st := v.State
	if b.held != "" {
		for _, d := range v.DatasetsFor(b.Name) {
			a := st.Copy(d.Name, b.Name)
			a.Target = cmp.Or(a.Target, b.Target.CopyOf(v.Root, d.Name))
			a.Hold(v.Started)
		}
		return
	}
	for _, name := range v.UnchangedAt(b.Name) {
		if v.RenamedWithParent(b.Target, name) {
			continue // the next run notices the missing copy and sends it
		}
		a := st.Copy(name, b.Name)
		a.Bytes, a.Seconds = 0, 0
		a.Record(v.Started, nil)
	}
	if b.err != nil {
		for _, d := range v.DatasetsFor(b.Name) {
			a := st.Copy(d.Name, b.Name)
			a.Bytes, a.Seconds = 0, 0
			a.Record(v.Started, b.err)
		}
		return
	}
	copies, sources := b.result.Target.ByName(), v.Source.ByName()
	for _, d := range b.result.Datasets {
		a := st.Copy(d.Source, b.Name)
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

// sendReporter is a send.Reporter that names job and target in messages.
type sendReporter struct {
	send.Reporter
	w  *jobRun
	to string
}

func (s *sendReporter) Log(message string) {
	s.Reporter.Log(replicate.Keys(s.w.session.Job.Name + " to " + s.to + ": " + message))
}

// gate limits how many datasets of a job are sent concurrently. The target with the fewest running
// transfers gets the next turn, so a slow target does not delay the others.
type gate struct {
	mu      sync.Mutex
	free    int
	running map[string]int
	waiting []*waiter // in order of arrival
}

type waiter struct {
	target string
	turn   chan struct{}
}

func newGate(limit int) *gate { return &gate{free: limit, running: map[string]int{}} }

// of returns the function by which a target's batch acquires a turn. It returns the function that
// releases it.
func (g *gate) of(target string) func(context.Context) (func(), error) {
	return func(ctx context.Context) (func(), error) {
		w := &waiter{target: target, turn: make(chan struct{})}
		g.mu.Lock()
		g.waiting = append(g.waiting, w)
		g.grant()
		g.mu.Unlock()
		select {
		case <-w.turn:
			return func() { g.done(target) }, nil
		case <-ctx.Done():
		}
		g.mu.Lock()
		i := slices.Index(g.waiting, w)
		if i >= 0 {
			g.waiting = slices.Delete(g.waiting, i, i+1)
		}
		g.mu.Unlock()
		if i < 0 { // it was granted a turn at the same moment
			g.done(target)
		}
		return nil, ctx.Err()
	}
}

func (g *gate) done(target string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free++
	g.running[target]--
	g.grant()
}

// grant grants the free turns. The caller must hold mu.
func (g *gate) grant() {
	for g.free > 0 && len(g.waiting) > 0 {
		next := 0
		for i, w := range g.waiting {
			if g.running[w.target] < g.running[g.waiting[next].target] {
				next = i
			}
		}
		w := g.waiting[next]
		g.waiting = slices.Delete(g.waiting, next, next+1)
		g.free--
		g.running[w.target]++
		close(w.turn)
	}
}
