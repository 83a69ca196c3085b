package job

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/plan"
	"zxfer/pkg/site"
	"zxfer/pkg/wire"
	"zxfer/pkg/zfs"
)

// streamCounter numbers the streams of a job.
type streamCounter struct{ atomic.Int64 }

// results collects what the streams of a job came to.
type results struct {
	mu  sync.Mutex
	all []*StepResult
}

func (r *results) add(s *StepResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, s)
}

// runDatasets moves every dataset of the plan, up to Parallel at once, each
// after those that it needs. One that fails stops only those that need it.
func (s *sender) runDatasets(ctx context.Context) error {
	failed := s.runEach(ctx)
	var errs []error
	for _, d := range s.report.Plan.Datasets {
		if err := failed[d.Source]; err != nil {
			errs = append(errs, err)
		}
	}
	return joinFailures(errs)
}

// turn waits for one of Parallel turns, or for the Gate's.
func (s *sender) turn() func(context.Context) (func(), error) {
	if s.req.Gate != nil {
		return s.req.Gate
	}
	slots := make(chan struct{}, max(1, s.req.Parallel))
	return func(context.Context) (func(), error) {
		slots <- struct{}{}
		return func() { <-slots }, nil
	}
}

// runEach returns what went wrong, by the dataset on the source.
func (s *sender) runEach(ctx context.Context) map[string]error {
	datasets := s.report.Plan.Datasets
	type state struct {
		done chan struct{}
		err  error
	}
	states := make(map[string]*state, len(datasets))
	for _, d := range datasets {
		states[d.Source] = &state{done: make(chan struct{})}
	}
	turn := s.turn()
	var res results
	var wg sync.WaitGroup
	for _, d := range datasets {
		wg.Add(1)
		go func() {
			defer wg.Done()
			st := states[d.Source]
			defer close(st.done)
			for _, need := range d.Needs {
				n := states[need]
				<-n.done
				if n.err != nil {
					st.err = &skipped{dataset: d.Source, need: need}
					if fault.ClassOf(n.err) == fault.Interrupted { // what resumes the one goes on to the other
						st.err = fault.Interrupt("", st.err)
					}
					return
				}
			}
			if len(d.Steps) == 0 && d.Discard == "" {
				return
			}
			release, err := turn(ctx)
			if err != nil {
				st.err = fault.Interrupt("the same command resumes", fmt.Errorf("%s: interrupted", d.Source))
				return
			}
			defer release()
			st.err = s.runDataset(ctx, d, &res)
		}()
	}
	wg.Wait()
	s.report.Results = res.all
	for _, r := range res.all {
		s.report.Bytes += r.Bytes
	}
	s.report.LimitedBy = slowestLimit(res.all)
	failed := map[string]error{}
	for _, d := range datasets {
		if err := states[d.Source].err; err != nil {
			failed[d.Source] = err
		}
	}
	return failed
}

// skipped is a dataset that was not tried because another failed.
type skipped struct{ dataset, need string }

func (e *skipped) Error() string {
	return fmt.Sprintf("%s was not sent: it needs %s, which failed", e.dataset, e.need)
}

// joinFailures joins the datasets' errors; the worst class counts: a failure
// is worse than an interruption that resumes.
func joinFailures(errs []error) error {
	if len(errs) <= 1 {
		return errors.Join(errs...)
	}
	class, hint := fault.Interrupted, ""
	for _, err := range errs {
		if fault.ClassOf(err) != fault.Interrupted {
			class = fault.Failed
		}
		if hint == "" {
			hint = fault.HintOf(err)
		}
	}
	return &fault.Error{Class: class, Hint: hint, Err: errors.Join(errs...)}
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

// runDataset moves one dataset, surveying and planning it anew after a cut
// until Retries tries in a row have brought nothing that the target kept.
func (s *sender) runDataset(ctx context.Context, d *plan.Dataset, res *results) error {
	tries := 0
	var before error // of the try before, where that brought nothing
	for {
		err := s.runSteps(ctx, d, res, tries)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fault.Interrupt("the same command resumes", fmt.Errorf("%s: interrupted", d.Source))
		}
		if !transient(err) || settled(before, err) {
			return fmt.Errorf("%s: %w", d.Source, err)
		}
		before = err
		for {
			if tries >= s.req.Retries {
				return fault.Interrupt("the same command resumes", fmt.Errorf("%s: %w", d.Source, err))
			}
			tries++
			pause := s.backoff(tries)
			s.rep.Log(fmt.Sprintf("%s: %v; try %d of %d in %s", d.Source, err, tries, s.req.Retries, pause.Round(100*time.Millisecond)))
			if !sleep(ctx, pause) {
				return fault.Interrupt("the same command resumes", fmt.Errorf("%s: interrupted", d.Source))
			}
			var again *plan.Dataset
			if again, err = s.replan(ctx, d); err == nil {
				if advanced(d, again) {
					tries, before = 0, nil
				}
				d = again
				break
			}
			if errors.As(err, new(*decided)) {
				return fmt.Errorf("%s: %w", d.Source, err)
			}
			if ctx.Err() != nil {
				return fault.Interrupt("the same command resumes", fmt.Errorf("%s: interrupted", d.Source))
			}
		}
	}
}

// transient tells whether another try may succeed without anybody's help.
func transient(err error) bool {
	if errors.Is(err, wire.ErrTampered) {
		return false
	}
	for _, kind := range append(overtaken(), zfs.Killed, zfs.Incomplete, zfs.Busy) {
		if errors.Is(err, &zfs.Error{Kind: kind}) {
			return true
		}
	}
	return errors.Is(err, wire.ErrCut) || errors.Is(err, site.ErrLost)
}

// overtaken are what a receive hears where the target changed since the plan: of
// one that still winds down after a cut, or of another that brought the same
// meanwhile. Planning anew decides.
func overtaken() []zfs.Kind {
	return []zfs.Kind{zfs.Exists, zfs.PartialState, zfs.NoState, zfs.BadToken}
}

// settled tells that an error is no echo of a cut any more: that the target has what
// was not there when the way was planned may be such once, not twice in a row.
func settled(before, err error) bool {
	for _, kind := range overtaken() {
		if e := (&zfs.Error{Kind: kind}); errors.Is(before, e) && errors.Is(err, e) {
			return true
		}
	}
	return false
}

// decided is what planning anew found, and no further try changes.
type decided struct{ error }

func (d *decided) Unwrap() error { return d.error }

// backoff doubles from half a second up to RetryFor, with jitter so that
// parallel datasets do not reconnect in step.
func (s *sender) backoff(try int) time.Duration {
	longest := s.req.RetryFor
	if longest <= 0 {
		longest = 30 * time.Second
	}
	d := min(longest, 500*time.Millisecond<<min(try-1, 16))
	return d/2 + rand.N(d/2+1)
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// persist calls f again after a lost connection. f bears to be repeated.
func (s *sender) persist(ctx context.Context, f func(context.Context) error) error {
	for tries := 1; ; tries++ {
		err := f(ctx)
		if err == nil || !errors.Is(err, site.ErrLost) || ctx.Err() != nil {
			return err
		}
		if tries > s.req.Retries {
			return fault.Interrupt("the same command resumes", err)
		}
		pause := s.backoff(tries)
		s.rep.Log(fmt.Sprintf("%v; try %d of %d in %s", err, tries, s.req.Retries, pause.Round(100*time.Millisecond)))
		sleep(ctx, pause)
	}
}

// replan surveys and plans one dataset anew. Conflicts are errors; that the target
// is half received may pass, as right after a cut the other end still winds down.
func (s *sender) replan(ctx context.Context, d *plan.Dataset) (*plan.Dataset, error) {
	req := s.req.Plan
	req.Source, req.Snapshot, req.Target, req.Recursive = d.Source, d.Arrive.Name, d.Target, false
	req.NoResume = false // what there is now, this job left
	state, err := s.survey(ctx, req)
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
	p, err := s.makePlan(ctx, req, &state)
	if err != nil {
		return nil, err
	}
	if len(p.Conflicts) > 0 {
		c := p.Conflicts[0]
		err := fault.Failf(c.Remedy, "%s", c.Summary)
		if c.ID != plan.HalfReceived {
			err = &decided{err}
		}
		return nil, err
	}
	if len(p.Datasets) != 1 || p.Datasets[0].Arrive.GUID != d.Arrive.GUID {
		return nil, &decided{fmt.Errorf("%s: %s changed while it was being sent", s.source.Label(), d.Arrive.In(d.Source))}
	}
	if err := s.estimate(ctx, &p, false); err != nil {
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

// runSteps moves the streams of one dataset in order.
func (s *sender) runSteps(ctx context.Context, d *plan.Dataset, res *results, tries int) error {
	if d.Discard != "" {
		s.rep.Log(fmt.Sprintf("%s: discarding the state of an interrupted receive: %s", d.Target, d.Discard))
		if err := s.target.Do(ctx, func(st site.Site) error { return st.DiscardPartial(ctx, d.Target) }); err != nil {
			return err
		}
	}
	if d.CreateParents {
		if err := s.target.Do(ctx, func(st site.Site) error { return st.CreateParents(ctx, d.Target) }); err != nil {
			return err
		}
	}
	if len(d.Clears) > 0 {
		s.rep.Log(fmt.Sprintf("%s: destroying what has the name of a snapshot that arrives: %s", d.Target, strings.Join(d.Clears, ", ")))
		if err := s.target.Do(ctx, func(st site.Site) error { return st.Destroy(ctx, d.Clears) }); err != nil {
			return err
		}
	}
	for i := range d.Steps {
		id := int(s.streams.Add(1))
		s.rep.Started(id, d, i)
		r, err := s.stream(ctx, d, i, id)
		r.Tries = tries + 1
		s.rep.Finished(id, r)
		res.add(r)
		if err != nil {
			return err
		}
	}
	return nil
}
