package status

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/transport"
)

// defaultGrace is how long after its due time a dataset may arrive.
const defaultGrace = 15 * time.Minute

// deadline computes when the datasets of a job are due. event is nil if the job has no schedule.
type deadline struct {
	event *calendar.Event
	grace time.Duration
	now   time.Time
	// pause is the last pause, or nil. While it is active, nothing is late.
	pause  *decide.Pause
	active bool
	// windows may have closed bandwidth windows, in which nothing is due. nil = none.
	windows *transport.Settings
}

func newDeadline(j *replicate.Job, w statusTimes) *deadline {
	d := &deadline{now: w.judgedAt(), grace: cmp.Or(time.Duration(j.Grace), defaultGrace) + time.Duration(j.Jitter), pause: w.pause, active: w.pause.State(w.now).Active()}
	if e, err := calendar.Parse(j.Schedule); err == nil { // "" is not a schedule
		d.event = e
	}
	return d
}

// forTarget returns the deadline of the datasets at a target.
func (d deadline) forTarget(j *replicate.Job, name string) *deadline {
	if t := j.Target(name); t != nil {
		d.windows = &j.TransferTo(t).Settings
	}
	return &d
}

// judge sets the lag of s by its last success, and returns the time from which the lag was
// computed.
func (d *deadline) judge(s *DatasetStatus, a *replicate.Attempt) (from time.Time) {
	if d.event == nil {
		return from
	}
	if d.active {
		if due, period := d.after(d.pause.DueFrom(a.Success, d.now)); !due.IsZero() && !d.pause.Until.IsZero() {
			s.expect(due.Add(d.grace), period)
		}
		return a.Success
	}
	arrived := a.Success
	if d.future(arrived) { // the clock is or was wrong
		arrived = time.Time{}
	}
	if a.Failing.IsZero() { // a copy that never arrived is due after the pause or the window
		arrived = cmp.Or(arrived, a.Held)
	}
	from = cmp.Or(arrived, a.Failing, a.Tried)
	if resumed := d.pause.DueFrom(from, d.now); resumed.After(from) {
		from, arrived = resumed, resumed
	}
	due, period := d.after(from)
	switch {
	case !arrived.IsZero() && !due.IsZero():
		s.Lag = max(0, d.now.Sub(due).Seconds())
		s.expect(due.Add(d.grace), period)
		s.Late = d.now.After(s.LateAfter)
	case arrived.IsZero():
		s.Late = true
		if !from.IsZero() && !d.future(from) {
			s.Lag = max(0, d.now.Sub(from).Seconds())
			s.expect(from, d.critical(period))
		}
	}
	if s.Late {
		s.State = Worst(s.State, Late)
	}
	return from
}

// critical returns how long after its due time a dataset has also missed a second run, or 0 if there is no period.
func (d *deadline) critical(period time.Duration) time.Duration {
	if period == 0 {
		return 0
	}
	return period + d.grace
}

// expect sets when a copy becomes late, and critical after one more period, unless it does earlier.
func (s *DatasetStatus) expect(late time.Time, period time.Duration) {
	if s.LateAfter.IsZero() || late.Before(s.LateAfter) {
		s.LateAfter = late
	}
	if critical := late.Add(period); period > 0 && (s.criticalAfter.IsZero() || critical.Before(s.criticalAfter)) {
		s.criticalAfter = critical
	}
}

// after returns the first due time after t, and the time to the next one. They are zero if there is none. Schedules
// mean the host's local time, which is that of now.
func (d *deadline) after(t time.Time) (due time.Time, period time.Duration) {
	if d.event == nil {
		return due, 0
	}
	due, ok := replicate.NextOpen(d.event, d.windows, d.grace, t.In(d.now.Location()))
	if !ok {
		return time.Time{}, 0
	}
	if next, ok := replicate.NextOpen(d.event, d.windows, d.grace, due); ok {
		period = next.Sub(due)
	}
	return due, period
}

// neverRan judges a job that never ran as if it had last run when its schedule took effect.
func (d *deadline) neverRan(js *JobStatus, since time.Time) {
	if d.active {
		js.State = OK
		return
	}
	if since.IsZero() || d.future(since) {
		return
	}
	since = d.pause.DueFrom(since, d.now)
	first, _ := d.after(since)
	if first.IsZero() {
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
	due, period := d.after(success)
	if due.IsZero() {
		return 0, 0
	}
	return d.grace.Seconds(), d.critical(period).Seconds()
}

// judgeReceived makes a copy of a relay late if its source gets no new snapshots: in two scheduled runs
// in succession, or for the limit of the job. One run may find none because the job that sends the source
// takes longer than usual. It reports whether the copy is late for this reason.
func (j *JobStatus) judgeReceived(s *DatasetStatus, of *replicate.Job, r *replicate.Received, d *deadline) bool {
	if r == nil || of.Snapshots.ReceivedFrom == "" || d.active || r.Since.IsZero() || d.future(r.Since) {
		return false
	}
	received, limit := d.pause.DueFrom(r.Since, d.now), time.Duration(of.Snapshots.Late)
	due, late := received.Add(limit), received.Add(limit)
	var from time.Time // of the lag, zero for a limit
	var period time.Duration
	if limit == 0 {
		if from, period = d.after(received); period == 0 {
			return false
		}
		due = from.Add(period)
		late = due.Add(d.grace)
		_, period = d.after(from)
	}
	s.expect(late, period)
	if !d.now.After(late) {
		return false
	}
	s.Late, s.Lag, s.State = true, max(s.Lag, d.now.Sub(due).Seconds()), Worst(s.State, Late)
	if !from.IsZero() && s.Lag > j.Lag {
		j.Lag = s.Lag
		j.LagWarning, j.LagCritical = d.levels(from)
	}
	return true
}

// addSilence adds the reasons why datasets of a relay get no new snapshots.
func (j *JobStatus) addSilence(of *replicate.Job, st *statedir.State, datasets []string) {
	job, _, _ := strings.Cut(of.Snapshots.ReceivedFrom, ":")
	nothing, unconfirmed, promoted := &Problem{State: Late}, &Problem{State: Late}, &Problem{State: Late}
	since, arrived := map[*Problem]time.Time{}, 0
	for _, name := range datasets {
		p, r := nothing, st.Datasets[name].Received
		switch {
		case r.Promoted:
			p = promoted
		case r.State == decide.ReceivedUnconfirmed:
			p, arrived = unconfirmed, arrived+r.Unconfirmed
		}
		p.Datasets = append(p.Datasets, name)
		if at := since[p]; at.IsZero() || r.Since.Before(at) {
			since[p] = r.Since
		}
	}
	for _, p := range []*Problem{unconfirmed, nothing, promoted} {
		if len(p.Datasets) == 0 {
			continue
		}
		j.Problems = append(j.Problems, p)
		from := since[p].Local().Format(time.DateTime)
		if p == promoted {
			p.Error = fmt.Sprintf("no snapshot was taken since %s: a fail over made it the source", from)
			p.Hint = "replace snapshots.received_from of job " + of.Name + " with snapshots.take"
			continue
		}
		p.Error = fmt.Sprintf("%s has confirmed no new snapshot since %s", of.Snapshots.ReceivedFrom, from)
		p.Hint = fmt.Sprintf("on the host of job %s: zxfer replicate status %s\nif that job was renamed or removed, change snapshots.received_from", job, job)
		if p == unconfirmed {
			p.Error += fmt.Sprintf(", but %d arrived", arrived)
			p.Hint += "\nthat job needs holds = \"both\" or \"target\""
		} else {
			p.Hint += "\nif it takes snapshots less often, set snapshots.late"
		}
	}
}
