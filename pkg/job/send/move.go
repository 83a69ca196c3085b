package send

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/retry"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// mover moves datasets from source to target.
type mover struct {
	ends *ends.Ends
	req  *Request
	rep  Reporter
	// surveyed is the state that the plan was made for, nil = unknown.
	surveyed *plan.State
	gate     Gate         // limits the datasets that use the hosts
	small    Gate         // limits the datasets that have only small streams
	limitID  uint64       // of the streams, which together keep the limits
	streams  atomic.Int64 // number of started streams
	changed  atomic.Bool  // the source or the target may have changed
	// reportsArrival makes the target report what the last stream of a dataset brought. This saves a listing
	// if there is only one dataset.
	reportsArrival bool
	// newRoots holds the copies that became encryption roots, rekeyed those whose key changed,
	// both by name.
	newRoots, rekeyed sync.Map
	unset             sync.Map // why properties of Access could not be set, by source dataset

	mu      sync.Mutex
	results []*StepResult  // of all streams
	arrived *hosts.Arrived // what the last stream brought, nil if the target did not report it
}

// move moves every planned dataset, up to Parallel concurrently, each after the datasets it
// needs. A failure stops only its dependents. It returns the errors by source dataset.
func (t *Job) move(ctx context.Context) map[string]error {
	type state struct {
		done chan struct{}
		err  error
	}
	start, p := time.Now(), t.Report.Plan
	states := make(map[string]*state, len(p.Datasets))
	for _, d := range p.Datasets {
		states[d.Source] = &state{done: make(chan struct{})}
	}
	t.mover.gate = within(t.Request.Gate, NewGate(max(1, t.Request.Parallel)))
	t.mover.small = NewGate(connect.MaxSmall)
	var wg sync.WaitGroup
	for _, d := range p.Datasets {
		wg.Go(func() {
			st := states[d.Source]
			defer close(st.done)
			defer func() { t.Reporter.Ended(d, st.err) }()
			for _, need := range d.Needs {
				n := states[need]
				<-n.done
				if errors.Is(n.err, ends.ErrInterrupted) {
					st.err = ends.Interrupted(d.Source)
					return
				}
				if n.err != nil {
					st.err = skippedCause(d.Source, need, n.err)
					return
				}
			}
			if len(d.Steps) == 0 && d.Discard == "" && len(d.SetAfter) == 0 {
				return
			}
			left := *d
			left.Steps = slices.Clone(d.Steps)
			one := &datasetMove{mover: t.mover, planned: d, left: &left, end: func() {}}
			defer func() { one.end() }()
			if err := one.begin(ctx); err != nil {
				st.err = ends.Interrupted(d.Source)
				return
			}
			l := ends.NewLoop(d.Source, t.Request.Retries, t.Reporter.Log)
			l.Try, l.Progress = one.try, one.replan
			l.Retryable = func(err, before error) bool { return ends.Transient(err) && !ends.Repeated(before, err) }
			st.err = l.Run(ctx)
		})
	}
	wg.Wait()
	if t.Ends.PathChanged() {
		t.evaluate()
	}
	failed := map[string]error{}
	for name, st := range states {
		if st.err != nil {
			failed[name] = st.err
		}
	}
	if len(t.mover.results) > 0 {
		t.Report.Seconds = time.Since(start).Seconds()
	}
	for _, r := range t.mover.results {
		t.Report.Bytes += r.Bytes
	}
	t.Report.Results, t.Report.LimitedBy = t.mover.results, slowestLimit(t.mover.results)
	return failed
}

// Gate limits how many datasets pass it. It blocks until one more may pass, or returns an error after ctx ended.
type Gate func(ctx context.Context) (release func(), err error)

// NewGate returns a Gate that lets a number of datasets pass at the same time, in order of arrival.
func NewGate(limit int) Gate {
	slots := make(chan struct{}, limit)
	return func(ctx context.Context) (func(), error) {
		select {
		case slots <- struct{}{}:
			return func() { <-slots }, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// within returns a Gate that also passes outer, if that is not nil. Only datasets that passed inner wait at outer: a
// job with many datasets delays others there only by few.
func within(outer, inner Gate) Gate {
	if outer == nil {
		return inner
	}
	return func(ctx context.Context) (func(), error) {
		leave, err := inner(ctx)
		if err != nil {
			return nil, err
		}
		release, err := outer(ctx)
		if err != nil {
			leave()
			return nil, err
		}
		return func() { release(); leave() }, nil
	}
}

// datasetMove moves one dataset, which is planned again after each interruption.
type datasetMove struct {
	*mover
	planned *plan.Dataset // at first; later plans must not destroy more
	left    *plan.Dataset // what remains to be done
	passed  bool          // the gate
	end     func()        // lets other datasets pass
}

// begin waits until the dataset may use the hosts.
func (m *datasetMove) begin(ctx context.Context) (err error) {
	for i := range m.left.Steps {
		step := &m.left.Steps[i]
		if _, small := m.smallLink(step); !small || step.Receive.Rollback {
			return m.pass(ctx)
		}
	}
	if len(m.left.Steps) == 0 {
		return m.pass(ctx)
	}
	m.end, err = m.small(ctx)
	return err
}

// pass waits at the gate, unless the dataset has passed it.
func (m *datasetMove) pass(ctx context.Context) error {
	if m.passed {
		return nil
	}
	release, err := m.gate(ctx)
	if err != nil {
		return err
	}
	before := m.end
	m.passed, m.end = true, func() { release(); before() }
	return nil
}

// try prepares the target dataset and moves the remaining streams in order.
func (m *datasetMove) try(ctx context.Context, tries int) error {
	if err := m.checkNewSnapshots(ctx); err != nil {
		return err
	}
	if err := m.makeEncryptionRoots(ctx, m.planned, m.planned.NewRoots); err != nil {
		return err
	}
	d := m.left
	if d.EndsDirection {
		end := zfs.PropertyChange{Dataset: d.Source, Revert: []string{zfs.DirectionProperty}}
		if err := m.recordChange(hosts.Run(ctx, hosts.By(m.ends.Source.Conn.Do), hosts.OpSetProperties, end), 0); err != nil {
			return err
		}
	}
	if err := m.prepareTarget(ctx, d); err != nil {
		return err
	}
	for i := range d.Steps {
		m.keepKey(&d.Steps[i])
		r, err := m.stream(ctx, d, i, tries)
		if err != nil {
			if err = m.changeKey(ctx, &d.Steps[i], err); err == nil {
				r, err = m.stream(ctx, d, i, tries)
			}
		}
		if m.recordChange(err, r.Bytes) != nil {
			return m.addUndoHint(ctx, d, err)
		}
	}
	return m.setAfter(ctx, d)
}

// setAfter sets the properties that a receive does not set. It only records a refusal, because the data
// arrived.
func (m *datasetMove) setAfter(ctx context.Context, d *plan.Dataset) error {
	if len(d.SetAfter) == 0 {
		return nil
	}
	err := hosts.Run(ctx, hosts.By(m.change), hosts.OpSetProperties, zfs.PropertyChange{Dataset: d.Target, Set: d.SetAfter})
	if err == nil || errors.Is(err, hosts.ErrLost) || ctx.Err() != nil {
		return err
	}
	m.unset.Store(d.Source, fault.Failf(fault.HintOf(err), "%s lacks %s of its source: %w", d.Target, zfs.JoinValues(d.SetAfter), err))
	return nil
}

// replan surveys and plans the dataset again. It reports whether the last try advanced.
func (m *datasetMove) replan(ctx context.Context) (bool, error) {
	before := m.left
	left, err := replan(ctx, m.ends, m.req.Plan, before)
	if err != nil {
		return false, err
	}
	m.left = left
	return advanced(before, left), nil
}

// checkNewSnapshots refuses a rollback that would destroy a target snapshot taken after the plan,
// because the user has not seen it.
func (m *datasetMove) checkNewSnapshots(ctx context.Context) error {
	d := m.left
	if len(d.Steps) == 0 || !d.Steps[0].Receive.Rollback {
		return nil
	}
	if _, small := m.smallLink(&d.Steps[0]); !small { // a search must not come between this and the receive
		if err := m.ends.Search.Probe(ctx); err != nil {
			return err
		}
	}
	l, err := m.ends.Target.Conn.List(ctx, hosts.ListQuery{Dataset: d.Target, NoAncestors: true, Newest: true})
	if err != nil {
		return err
	}
	if t := l.Find(d.Target); t != nil {
		if v, ok := t.Latest(); ok && v.GUID != d.Steps[0].BaseGUID && !m.planned.MayLose(v) {
			return fault.Refusef("to list it as lost, run the same command again\nto keep it, omit {{rollback}}",
				"%s was taken after the plan was made, and would be destroyed", v.In(d.Target))
		}
	}
	return nil
}

// prepareTarget makes the changes to the target that precede the streams of a dataset.
func (m *mover) prepareTarget(ctx context.Context, d *plan.Dataset) error {
	target := hosts.By(m.change)
	if a := d.Rename; a != nil {
		set := []zfs.DivergedCopy{{Dataset: d.Target, GUID: a.GUID, As: a.As}}
		if err := hosts.Run(ctx, target, hosts.OpRenameDiverged, set); err != nil {
			return err
		}
		m.rep.Log(fmt.Sprintf("%s is renamed to %s and sent in full: %s; when you no longer need it: %s",
			d.Target, a.As, a.Why, m.ends.Target.Conn.Command("zfs", "destroy", "-r", a.As)))
	}
	if d.Discard != "" {
		m.rep.Log(fmt.Sprintf("%s: discarding the state of an interrupted receive: %s", d.Target, d.Discard))
		if err := hosts.Run(ctx, target, hosts.OpDiscardPartial, d.Target); err != nil {
			return err
		}
	}
	if d.CreateParents {
		if err := hosts.Run(ctx, target, hosts.OpCreateParents, d.Target); err != nil {
			return err
		}
	}
	if len(d.DestroyedFirst) > 0 {
		m.rep.Log(fmt.Sprintf("%s: destroying a snapshot with the name of a received one: %s", d.Target, strings.Join(d.DestroyedFirst, ", ")))
		if err := hosts.Run(ctx, target, hosts.OpDestroy, d.DestroyedFirst); err != nil {
			return err
		}
	}
	if len(d.MovedHolds) == 0 {
		return nil
	}
	return MoveHolds(ctx, target, d.MovedHolds)
}

// stream moves the stream of step i.
func (m *datasetMove) stream(ctx context.Context, d *plan.Dataset, i, tries int) (*StepResult, error) {
	step, id := &d.Steps[i], int(m.streams.Add(1))
	m.rep.Started(id, d, i)
	res, err := m.run(ctx, d, i, func(p connect.Progress) { m.rep.Progress(id, p) })
	r := &StepResult{
		Source: d.Source, Target: d.Target, Snapshot: "@" + step.Send.To, Kind: step.Kind, Tries: tries + 1,
		Bytes: res.Bytes, Speed: res.Speed, Resumed: step.Kind == plan.Resume, Wire: res.Wire, Bottleneck: res.Bottleneck,
		Digest: res.Received.Digest,
	}
	if len(step.Receive.Only) > 0 {
		r.ReadBytes, r.Blocks = uint64(max(0, res.Sent.Worked)), res.Sent.Blocks
	}
	if err != nil {
		err = m.explain(d, step, err)
		r.Error = err.Error()
		if ctx.Err() != nil { // the other host only sees a lost connection
			r.Error = ends.ErrInterrupted.Error()
		}
	}
	m.rep.Finished(id, r)
	m.addResult(r, res.Received.Arrived)
	return r, err
}

// run moves the stream of step i.
func (m *datasetMove) run(ctx context.Context, d *plan.Dataset, i int, report func(connect.Progress)) (connect.Result, error) {
	step := &d.Steps[i]
	count := connect.Count{Done: step.Done}
	if step.Bytes > 0 {
		count.Total = step.Done + step.Bytes
	}
	link := m.ends.Search.Link()
	from, to := m.streamEnds(&link, d, step, m.reportsArrival && i == len(d.Steps)-1)
	if small, ok := m.smallLink(step); ok {
		return connect.Run(ctx, small, from, to, count, report)
	}
	if err := m.pass(ctx); err != nil {
		return connect.Result{}, err
	}
	return m.ends.Search.Run(ctx, from, to, count, report)
}

// smallLink returns the link for a small stream, or false if the stream needs a path.
func (m *datasetMove) smallLink(step *plan.Step) (connect.Link, bool) {
	return m.ends.Search.First().Small(smallBytes(step))
}

// streamEnds returns both ends of a stream over a link. report requests what arrived.
func (m *mover) streamEnds(link *connect.Link, d *plan.Dataset, step *plan.Step, report bool) (connect.From, connect.To) {
	options := smallStreamOptions(link.ForLink(streamOptions(m.req)), step.Bytes)
	options.LimitID = m.limitID
	if !step.Receive.Rollback { // a rollback must not wait after checkNewSnapshots
		options.Concurrent = min(max(1, m.req.Parallel), connect.MaxSmall)
	}
	if step.Send.Flags.Raw {
		options.Compress = "off" // encrypted data does not compress
	}
	receiving := options
	if len(step.Receive.Only) > 0 {
		receiving.Stall = transfer.MaxStall // the source may read for hours before it finds a block
	}
	return connect.From{Host: m.ends.Source.Conn, What: hosts.SendStream{Spec: step.Send, Only: step.Receive.Only, Options: options}, Encrypted: d.Encrypted},
		connect.To{Host: m.ends.Target.Conn, What: hosts.ReceiveStream{Spec: step.Receive, Options: receiving, Report: report}}
}

// explain adds the known cause to the error of a stream, in front of its hint.
func (m *mover) explain(d *plan.Dataset, step *plan.Step, err error) error {
	t := zfs.Transfer{
		SourceAt: m.ends.Source.Conn.At(), SourceZFS: m.ends.Source.Facts.ZFS, TargetZFS: m.ends.Target.Facts.ZFS, Send: step.Send, Target: d.Target,
		Corrective: step.Receive.Corrective, SourceEncrypted: step.Send.Flags.Raw,
	}
	if m.surveyed != nil {
		if s := m.surveyed.Source.Find(d.Source); s != nil {
			t.SourceEncrypted = s.Encrypted()
		}
		t.TargetEncrypted = preflight.EncryptedOnArrival(m.surveyed.Target.ByName(), d.Target, step.Receive.Set["encryption"])
	}
	hint := t.Explain(err)
	if hint == "" {
		return err
	}
	if own := fault.HintOf(err); own != "" {
		hint += "\n" + own
	}
	return &fault.Error{Class: fault.ClassOf(err), Hint: hint, Err: err}
}

// smallStreamOptions reduces block and buffer sizes for a stream of about that many bytes, 0 =
// unknown. Each stream allocates buffers at both ends, and clearing megabytes for a few kilobytes
// took a third of zxfer's own time. A stream that fits into one block gains nothing from
// compression.
func smallStreamOptions(o transfer.Options, bytes uint64) transfer.Options {
	if bytes == 0 || bytes >= transfer.DefaultBlock {
		return o
	}
	o.Block = int(max(bytes, transfer.SmallBlock))
	o.Buffer = min(cmp.Or(o.Buffer, transfer.DefaultBuffer), 16*transfer.DefaultBlock)
	if o.Small() && o.Compress == "auto" {
		o.Compress = "off"
	}
	return o
}

func streamOptions(req *Request) transfer.Options {
	now := time.Now
	if req.Clock != nil {
		now = req.Clock
	}
	return connect.Options(&req.Settings, now())
}

// addUndoHint adds a hint to the error of a modified copy. It lists the target again, because its
// snapshots may have changed.
func (m *mover) addUndoHint(ctx context.Context, d *plan.Dataset, err error) error {
	if !errors.Is(err, &zfs.Error{Kind: zfs.Modified}) {
		return err
	}
	l, failed := m.ends.Target.Conn.List(ctx, hosts.ListQuery{Dataset: d.Target, NoAncestors: true, Newest: true})
	if t := l.Find(d.Target); failed == nil && t != nil && len(t.Versions) > 0 {
		return &fault.Error{Class: fault.ClassOf(err), Hint: plan.ModifiedHint(m.ends.Target.Conn.At(), t), Err: err}
	}
	return err
}

// change runs an operation on the target and records that the target may have changed.
func (m *mover) change(ctx context.Context, f func(hosts.Host) error) error {
	return m.recordChange(m.ends.Target.Conn.Do(ctx, f), 0)
}

// recordChange records that a host may have changed, except after a refusal without any
// bytes. It returns err.
func (m *mover) recordChange(err error, bytes uint64) error {
	if bytes > 0 || outcome.Of(err) != outcome.Refused {
		m.changed.Store(true)
	}
	return err
}

func (m *mover) addResult(r *StepResult, arrived *hosts.Arrived) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.results, m.arrived = append(m.results, r), arrived
}

// replan surveys and plans one dataset again. Conflicts are permanent errors, except
// HalfReceived: right after an interruption the old receive may still be ending.
func replan(ctx context.Context, e *ends.Ends, req plan.Request, d *plan.Dataset) (*plan.Dataset, error) {
	req = req.Remaining(d)
	state, err := Survey(ctx, e, req, false)
	if err != nil {
		return nil, err
	}
	p, err := makePlan(ctx, e, req, &state, nil)
	if err != nil {
		return nil, err
	}
	if len(p.Conflicts) > 0 {
		c := p.Conflicts[0]
		err := fault.Failf(c.Remedy, "%s", c.Summary)
		if c.ID != plan.HalfReceived {
			err = &retry.Permanent{Err: err}
		}
		return nil, err
	}
	if len(p.Datasets) != 1 || p.Datasets[0].Final.GUID != d.Final.GUID {
		return nil, &retry.Permanent{Err: fmt.Errorf("%s: %s changed during the transfer", e.Source.Conn.Label(), d.Final.In(d.Source))}
	}
	if err := estimate(ctx, &e.Source, &p, &state.Source, false); err != nil {
		return nil, err
	}
	return p.Datasets[0], nil
}

// advanced reports whether the target has more than when before was planned: the next stream is
// due, or more of the interrupted one is stored.
func advanced(before, after *plan.Dataset) bool {
	if len(before.Steps) == 0 || len(after.Steps) == 0 {
		return len(after.Steps) < len(before.Steps)
	}
	a, b := &before.Steps[0], &after.Steps[0]
	return a.ToGUID != b.ToGUID || b.Done > a.Done
}

// slowestLimit returns the bottleneck of the longest stream.
func slowestLimit(all []*StepResult) string {
	var longest *StepResult
	for _, r := range all {
		if longest == nil || r.Seconds > longest.Seconds {
			longest = r
		}
	}
	if longest == nil {
		return ""
	}
	return longest.LimitedBy
}
