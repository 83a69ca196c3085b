package ends

import "context"

// Stages are the parts of a job before its first change. Ends.Prepare runs them for every verb that
// moves data: send, restore, batch, dev and files.
type Stages struct {
	// Survey queries both hosts, chooses the transport and plans.
	Survey func(ctx context.Context) error
	// Admit returns why the job must not run, as far as is known.
	Admit func() error
	// Moves reports whether data is to be moved over a network path.
	Moves func() bool
	// Evaluate repeats the checks, now including the path.
	Evaluate func()
	// DryRun means that the plan shows the path, although nothing will be moved.
	DryRun bool
	// Measure, if not nil, does what needs the path before the move.
	Measure func(ctx context.Context) error
	// Planned shows the plan.
	Planned func()
}

// Prepare runs all stages before the first change. A refused job needs no path and no measurement. The search for the
// path is left to the move if it cannot fail.
func (e *Ends) Prepare(ctx context.Context, rep Watcher, s *Stages) error {
	if err := s.Survey(ctx); err != nil {
		return Unchanged(err)
	}
	if s.Moves() && s.Admit() == nil {
		if s.DryRun || s.Measure != nil || !e.Search.Certain() {
			if err := e.Open(ctx, rep); err != nil {
				return err
			}
			s.Evaluate()
		}
		if s.Measure != nil && s.Admit() == nil {
			if err := s.Measure(ctx); err != nil {
				return Unchanged(err)
			}
		}
	}
	s.Planned()
	return s.Admit()
}

// Watcher receives the events of any job. Its methods may be called concurrently.
type Watcher interface {
	// Log receives a message for the user.
	Log(message string)
	// Activity is called when a longer operation other than a stream starts, such as "listing
	// tank". The caller calls done when it ends.
	Activity(title string) (done func())
}

func WithActivity(ctx context.Context, rep Watcher, title string, f func(context.Context) error) error {
	defer rep.Activity(title)()
	return f(ctx)
}
