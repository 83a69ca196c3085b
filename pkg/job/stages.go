// Package job runs the commands that move or compare data between two hosts: send, batch, restore,
// heal, dev, compare and doctor. It is the only package that sees all parts of a transfer.
//
// Nouns:
//   - request: the input of a command: Send, Batch, Restore, Files, Heal, Dev, Compare, Doctor
//   - report: its result, which --json prints
//   - reporter: receives the events of a running job, such as progress
//   - end: a host of the job with its facts; ends: source, target and the link between them
//   - stage: a step of a job: survey, plan, admit, open, measure, move, verify (see stages.go)
//   - survey: the listings and facts of both hosts from which package plan plans
//   - finding: a result of the preflight checks; some block the job
//   - conflict: a reason of the planner to refuse a dataset or the request
//   - try: one attempt of a stream or copy; after an interruption a loop of package retry starts another one
//   - heal pair: a damaged dataset and a good one with common snapshots
//   - heal snapshot: a temporary snapshot that is sent to heal the live data
//
// It decides order and retries only. Package plan decides the steps, preflight evaluates the checks,
// transport/connect moves the bytes, job/measure and job/forecast measure and predict rates, and replicate
// decides when jobs run.
package job

import "context"

// stages are the parts of a job before its first change. ends.prepare runs them for every verb that
// moves data: send, restore, batch, dev and files.
type stages struct {
	// survey queries both hosts, chooses the transport and plans.
	survey func(ctx context.Context) error
	// admit returns why the job must not run, as far as is known.
	admit func() error
	// moves reports whether data is to be moved over a network path.
	moves func() bool
	// evaluate repeats the checks, now including the path.
	evaluate func()
	// measure, if not nil, does what needs the path before the move.
	measure func(ctx context.Context) error
	// planned shows the plan.
	planned func()
}

// prepare runs all stages before the first change. A refused job needs no path and no measurement.
func (e *ends) prepare(ctx context.Context, rep Watcher, s *stages) error {
	if err := s.survey(ctx); err != nil {
		return unchanged(err)
	}
	if s.moves() && s.admit() == nil {
		if err := e.open(ctx, rep); err != nil {
			return err
		}
		s.evaluate()
		if s.measure != nil && s.admit() == nil {
			if err := s.measure(ctx); err != nil {
				return unchanged(err)
			}
		}
	}
	s.planned()
	return s.admit()
}

// async runs f in the background. wait returns its results; stop cancels f and waits for its end.
func async[T any](ctx context.Context, f func(context.Context) (T, error)) (wait func(context.Context) (T, error), stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var got T
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		got, err = f(ctx)
	}()
	return func(context.Context) (T, error) { <-done; return got, err }, func() { cancel(); <-done }
}
