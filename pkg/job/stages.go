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
