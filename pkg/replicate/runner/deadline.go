package runner

import (
	"cmp"
	"time"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
)

// defaultGrace is how long after its due time a dataset may arrive.
const defaultGrace = 15 * time.Minute

// deadline computes when the datasets of a job are due. event is nil if the job has no schedule.
type deadline struct {
	event *calendar.Event
	grace time.Duration
	now   time.Time
}

// judge sets the lag of s by its last success, and returns the time from which the lag was
// computed.
func (d *deadline) judge(s *DatasetStatus, a *replicate.Attempt) (from time.Time) {
	if d.event == nil {
		return from
	}
	from = a.Success
	if from.IsZero() || d.future(from) {
		s.Late = true
		if from = cmp.Or(a.Failing, a.Tried); !from.IsZero() && !d.future(from) {
			s.Lag, s.LateAfter = max(0, d.now.Sub(from).Seconds()), from
		}
	} else if due, _, ok := d.after(from); ok {
		s.LateAfter = due.Add(d.grace)
		s.Lag = max(0, d.now.Sub(due).Seconds())
		s.Late = d.now.After(s.LateAfter)
	}
	if s.Late {
		s.State = worst(s.State, Late)
	}
	return from
}

// after returns the first two due times after t, in the time zone of now, because schedules mean
// the host's local time.
func (d *deadline) after(t time.Time) (due, next time.Time, ok bool) {
	if d.event == nil {
		return due, next, false
	}
	if due, ok = d.event.Next(t.In(d.now.Location())); ok {
		next, _ = d.event.Next(due)
	}
	return due, next, ok
}

// neverRan judges a job that never ran as if it had last run when its schedule took effect.
func (d *deadline) neverRan(js *JobStatus, since time.Time) {
	if since.IsZero() || d.future(since) {
		return
	}
	first, _, ok := d.after(since)
	if !ok {
		return
	}
	js.State, js.Lag = OK, max(0, d.now.Sub(first).Seconds())
	js.Late = d.now.After(first.Add(d.grace))
	js.LagWarning, js.LagCritical = d.levels(since)
}

// future reports whether t is in the future, because the clock is or was wrong.
func (d *deadline) future(t time.Time) bool { return t.After(d.now.Add(d.grace)) }

// levels returns how many seconds after its due time a dataset is late, and when it also missed a
// second run.
func (d *deadline) levels(success time.Time) (warning, critical float64) {
	due, next, ok := d.after(success)
	if !ok {
		return 0, 0
	}
	warning = d.grace.Seconds()
	if !next.IsZero() {
		critical = (next.Sub(due) + d.grace).Seconds()
	}
	return warning, critical
}
