package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// mover moves the datasets of a plan.
type mover struct {
	*ends
	req     *Send
	rep     Reporter
	streams atomic.Int64 // that were begun
	changed atomic.Bool  // that the target may be another than before
	// parted are copies that became encryption roots, rekeyed those whose key turned out
	// to be another, by name.
	parted, rekeyed sync.Map

	mu      sync.Mutex
	results []*StepResult // of all streams
}

// change does something on the target that no stream does.
func (m *mover) change(ctx context.Context, f func(hosts.Host) error) error {
	return m.noted(m.target.Do(ctx, f), 0)
}

// noted notes that what ended so may have changed the target: only a refusal that
// came before any byte did not.
func (m *mover) noted(err error, bytes uint64) error {
	if bytes > 0 || outcome.Of(err) != outcome.Refused {
		m.changed.Store(true)
	}
	return err
}

func (m *mover) add(r *StepResult) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.results = append(m.results, r)
}

// turn waits for one of Parallel turns, or for the Gate's.
func (m *mover) turn() func(context.Context) (func(), error) {
	if m.req.Gate != nil {
		return m.req.Gate
	}
	slots := make(chan struct{}, max(1, m.req.Parallel))
	return func(context.Context) (func(), error) {
		slots <- struct{}{}
		return func() { <-slots }, nil
	}
}

// all moves every dataset of a plan, up to Parallel at once, each after those
// that it needs. One that fails stops only those that need it. It returns what
// went wrong, by the dataset on the source.
func (m *mover) all(ctx context.Context, p *plan.Plan) map[string]error {
	type state struct {
		done chan struct{}
		err  error
	}
	states := make(map[string]*state, len(p.Datasets))
	for _, d := range p.Datasets {
		states[d.Source] = &state{done: make(chan struct{})}
	}
	turn := m.turn()
	var wg sync.WaitGroup
	for _, d := range p.Datasets {
		wg.Go(func() {
			st := states[d.Source]
			defer close(st.done)
			defer func() { m.rep.Ended(d, st.err) }()
			for _, need := range d.Needs {
				n := states[need]
				<-n.done
				if n.err != nil {
					st.err = skippedCause(d.Source, need, n.err)
					return
				}
			}
			if len(d.Steps) == 0 && d.Discard == "" {
				return
			}
			e := m.retrier(d)
			release, err := turn(ctx)
			if err != nil {
				st.err = e.interrupted()
				return
			}
			defer release()
			st.err = e.run(ctx)
		})
	}
	wg.Wait()
	failed := map[string]error{}
	for name, st := range states {
		if st.err != nil {
			failed[name] = st.err
		}
	}
	return failed
}

// skippedError is a dataset that was not tried because another failed.
type skippedError struct{ dataset, need string }

func (e *skippedError) Error() string {
	return fmt.Sprintf("%s was not sent: it needs %s, which failed", e.dataset, e.need)
}

// skippedCause is what a dataset ended with that was not tried: what resumes the one
// that it needs goes on to it, and where that was refused nothing was changed.
func skippedCause(dataset, need string, err error) error {
	return &fault.Error{Class: fault.ClassOf(err), Err: &skippedError{dataset: dataset, need: need}}
}

// slowestLimit is what limited the stream that took longest.
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

// retrier moves one dataset, surveying and planning it anew after a cut.
func (m *mover) retrier(d *plan.Dataset) *retrier {
	planned := d // what it may lose is not decided anew
	return &retrier{
		name: d.Source, retries: m.req.Retries, log: m.rep.Log,
		try: func(ctx context.Context, tries int) error {
			if err := m.checkNewSnapshots(ctx, planned, d); err != nil {
				return err
			}
			if err := m.partKeys(ctx, planned, planned.Parts); err != nil {
				return err
			}
			return m.steps(ctx, planned, d, tries)
		},
		look: func(ctx context.Context) (bool, error) {
			again, err := replan(ctx, m.ends, m.req.Plan, d)
			if err != nil {
				return false, err
			}
			before := d
			d = again
			return advanced(before, d), nil
		},
		curable: func(err, before error) bool { return transient(err) && !settled(before, err) },
	}
}

// replan surveys and plans one dataset anew. Conflicts are errors; that the target
// is half received may pass, as right after a cut the other end still winds down.
func replan(ctx context.Context, e *ends, req plan.Request, d *plan.Dataset) (*plan.Dataset, error) {
	if req.Restore && d.Source != req.Source { // it inherits that of the tree's root
		req.Set = maps.Clone(req.Set)
		delete(req.Set, "mountpoint")
	}
	req.Source, req.Snapshot, req.Target, req.Recursive = d.Source, d.Arrive.Name, d.Target, false
	req.NoResume = false // what there is now, this job left
	if d.Aside == nil {
		req.Rotate = "" // nobody was told of it
	}
	if len(d.Steps) > 0 && (d.Steps[0].Kind == plan.Full || d.Steps[0].Kind == plan.Clone) { // it was to be begun, and may be still
		req.Again = map[string]bool{d.Target: true}
	}
	state, err := survey(ctx, e, req)
	if err != nil {
		return nil, err
	}
	const encryption = "encryption"
	if t := state.Target.Find(d.Target); (t == nil || t.Inconsistent()) && len(d.Steps) > 0 && d.Steps[0].Receive.Set[encryption] == "off" {
		// That an encrypted replica is above only the plan of both could tell.
		req.Set = maps.Clone(req.Set)
		if req.Set == nil {
			req.Set = map[string]string{}
		}
		req.Set[encryption] = "off"
	}
	p, err := makePlan(ctx, e, req, &state, nil)
	if err != nil {
		return nil, err
	}
	if len(p.Conflicts) > 0 {
		c := p.Conflicts[0]
		err := fault.Failf(c.Remedy, "%s", c.Summary)
		if c.ID != plan.HalfReceived {
			err = &permanentError{err}
		}
		return nil, err
	}
	if len(p.Datasets) != 1 || p.Datasets[0].Arrive.GUID != d.Arrive.GUID {
		return nil, &permanentError{fmt.Errorf("%s: %s changed while it was being sent", e.source.Label(), d.Arrive.In(d.Source))}
	}
	if err := estimate(ctx, &e.source, &p, &state.Source, false); err != nil {
		return nil, err
	}
	return p.Datasets[0], nil
}

// advanced tells whether the target holds more than when before was planned:
// another stream is next, or more of the interrupted one is there.
func advanced(before, after *plan.Dataset) bool {
	if len(before.Steps) == 0 || len(after.Steps) == 0 {
		return len(after.Steps) < len(before.Steps)
	}
	a, b := &before.Steps[0], &after.Steps[0]
	return a.ToGUID != b.ToGUID || b.Done > a.Done
}

// steps moves the streams of one dataset in order.
func (m *mover) steps(ctx context.Context, planned, d *plan.Dataset, tries int) error {
	if a := d.Aside; a != nil {
		set := []zfs.DivergedCopy{{Dataset: d.Target, GUID: a.GUID, As: a.As}}
		if err := m.change(ctx, hosts.WithRole(func(st hosts.Retention) error { return st.RenameDiverged(ctx, set) })); err != nil {
			return err
		}
		m.rep.Log(fmt.Sprintf("%s is set aside as %s, and begun anew: %s; to give it up, once you do not need it: %s",
			d.Target, a.As, a.Why, zfs.CommandLine([]string{"zfs", "destroy", "-r", a.As})))
	}
	if d.Discard != "" {
		m.rep.Log(fmt.Sprintf("%s: discarding the state of an interrupted receive: %s", d.Target, d.Discard))
		if err := m.change(ctx, func(st hosts.Host) error { return st.DiscardPartial(ctx, d.Target) }); err != nil {
			return err
		}
	}
	if d.CreateParents {
		if err := m.change(ctx, func(st hosts.Host) error { return st.CreateParents(ctx, d.Target) }); err != nil {
			return err
		}
	}
	if len(d.Clears) > 0 {
		m.rep.Log(fmt.Sprintf("%s: destroying what has the name of a snapshot that arrives: %s", d.Target, strings.Join(d.Clears, ", ")))
		if err := m.change(ctx, func(st hosts.Host) error { return st.Destroy(ctx, d.Clears) }); err != nil {
			return err
		}
	}
	if len(d.Moves) > 0 {
		if err := m.change(ctx, func(st hosts.Host) error { return moveHolds(ctx, st, d.Moves) }); err != nil {
			return err
		}
	}
	for i := range d.Steps {
		r, err := m.keyed(ctx, planned, d, &d.Steps[i], func() (*StepResult, error) {
			id := int(m.streams.Add(1))
			m.rep.Started(id, d, i)
			r, err := m.stream(ctx, d, i, id)
			r.Tries = tries + 1
			m.rep.Finished(id, r)
			m.add(r)
			return r, err
		})
		if m.noted(err, r.Bytes) != nil {
			return m.modified(ctx, d, err)
		}
	}
	return nil
}

// moveHolds moves holds of zxfer's jobs off snapshots that are about to be lost. Each is placed
// first: cut off in between, it is on both, and the same command goes on. It is idempotent.
func moveHolds(ctx context.Context, st hosts.Host, moves []plan.MovedHold) error {
	for _, m := range moves {
		if err := st.Hold(ctx, m.Tag, []string{m.To}); err != nil {
			return err
		}
		if err := st.Release(ctx, m.Tag, m.From); err != nil {
			return err
		}
	}
	return nil
}

// checkNewSnapshots refuses a stream that would destroy a snapshot of the target which nobody
// was told of: one that was taken since it was planned.
func (m *mover) checkNewSnapshots(ctx context.Context, planned, d *plan.Dataset) error {
	if len(d.Steps) == 0 || !d.Steps[0].Receive.Rollback {
		return nil
	}
	l, err := m.target.List(ctx, hosts.ListQuery{Dataset: d.Target, Alone: true, Newest: true})
	if err != nil {
		return err
	}
	if t := l.Find(d.Target); t != nil {
		if v, ok := t.Latest(); ok && v.GUID != d.Steps[0].BaseGUID && !planned.MayLose(v) {
			return fault.Refusef("the same command plans anew, and names it with what is lost; to keep it, do without {{rollback}}",
				"%s was taken after this was planned, and would be destroyed", v.In(d.Target))
		}
	}
	return nil
}

// modified adds to the refusal of a copy that was modified after it was looked at how
// that is undone: only the target knows what it has by now.
func (m *mover) modified(ctx context.Context, d *plan.Dataset, err error) error {
	if !errors.Is(err, &zfs.Error{Kind: zfs.Modified}) {
		return err
	}
	l, failed := m.target.List(ctx, hosts.ListQuery{Dataset: d.Target, Alone: true, Newest: true})
	if t := l.Find(d.Target); failed == nil && t != nil && len(t.Versions) > 0 {
		return &fault.Error{Class: fault.ClassOf(err), Hint: plan.LoseChanges(t), Err: err}
	}
	return err
}

// stream moves one step and returns what happened.
func (m *mover) stream(ctx context.Context, d *plan.Dataset, i int, id int) (*StepResult, error) {
	step := &d.Steps[i]
	count := connect.Count{Done: step.Done}
	if step.Bytes > 0 {
		count.Total = step.Done + step.Bytes
	}
	options := smallStreamOptions(streamOptions(m.req), step.Bytes)
	if step.Send.Flags.Raw {
		options.Compress = "off" // encrypted blocks do not compress
	}
	res, err := connect.Run(ctx, m.link,
		connect.From{Host: m.source.Conn, What: hosts.SendStream{Spec: step.Send, Options: options}},
		connect.To{Host: m.target.Conn, What: hosts.ReceiveStream{Spec: step.Receive, Options: options}},
		count, func(p connect.Progress) { m.rep.Progress(id, p) })
	r := &StepResult{
		Source: d.Source, Target: d.Target, Snapshot: "@" + step.Send.To, Kind: step.Kind,
		Bytes: res.Bytes, Seconds: res.Elapsed.Seconds(), Rate: res.Rate(), Resumed: step.Kind == plan.Resume,
		Wire: res.Wire, Network: res.Sent.Network, Digest: res.Received.Digest, Stages: res.Stages, LimitedBy: res.LimitedBy,
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r, err
}

// smallStreamOptions are options for a stream of about so many bytes, 0 = unknown. Each end makes a
// ring, blocks and a compressor for every stream; to clear megabytes of memory for some
// kilobytes took a third of what zxfer itself spent on them. What fits into one block
// crosses in the round trips that a connection takes to begin, compressed or not.
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

// streamOptions are those of a stream that begins now.
func streamOptions(req *Send) transfer.Options {
	now := time.Now
	if req.Clock != nil {
		now = req.Clock
	}
	return connect.Options(&req.Settings, now())
}
