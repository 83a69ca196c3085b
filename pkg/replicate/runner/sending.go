package runner

import (
	"zxfer/pkg/fault"
	"zxfer/pkg/job"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
)

// sending is a Reporter that writes down what is on its way before the first
// stream begins: after a cut the target may be away, and what it has got by
// then must stay on the source.
type sending struct {
	quiet
	w       *work
	t       *targetWork
	plan    *plan.Plan
	written bool
}

func (s *sending) Planned(r *job.Report) { s.plan = r.Plan }

func (s *sending) Started(int, *plan.Dataset, int) {
	s.w.shared.Lock()
	defer s.w.shared.Unlock()
	if s.written {
		return
	}
	s.written = true
	for _, d := range s.plan.Datasets {
		if len(d.Steps) > 0 {
			s.w.state.Arrival(d.Source, s.t.Name).Sending = d.Arrive.CreateTXG
		}
	}
	if err := s.w.store.Save(s.w.state); err != nil {
		s.w.note("%s: what is being sent could not be written down: %v", s.t.Name, err)
	}
}

// arrived notes what became of what was on its way.
func (t *targetWork) arrived(a *replicate.Arrival, d *job.DatasetResult) {
	if d.Err == nil {
		a.Sending = 0
		return
	}
	// What was cut may still be arriving while the target is looked at.
	t.cut[d.Source] = fault.ClassOf(d.Err) == fault.Interrupted
}
