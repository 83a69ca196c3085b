package status

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/remedy"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/statedir"
)

func divergedOf(j *replicate.Job, st *statedir.State) (out []DivergedStatus) {
	for _, d := range st.Diverged {
		s := DivergedStatus{DivergedCopy: d}
		for i := range j.Targets {
			t := &j.Targets[i]
			if to, err := endpoint.Parse(t.To); err == nil && t.Name == d.Target {
				s.Destroy = remedy.Host{Name: to.Host, Shell: j.TransferTo(t).RSH}.Command("zfs", "destroy", "-r", d.As)
			}
		}
		out = append(out, s)
	}
	return out
}

// Of reads the status of jobs from their records. It changes nothing and connects to no
// host. An unreadable record affects only its own job.
//
// since returns when the schedule of a job took effect, for jobs that never ran. It may be nil or
// return the zero time if that is unknown.
func Of(jobs []*replicate.Job, stateDir string, now time.Time, since func(job string) time.Time) *Status {
	s := &Status{Schema: Schema, Jobs: []*JobStatus{}}
	for _, j := range jobs {
		store := statedir.Peek(stateDir, j.Name)
		st, err := store.FullState()
		w := statusTimes{now: now, run: store.Run()}
		var unreadable error
		w.pause, unreadable = statedir.Paused(stateDir, j.Name, now)
		err = cmp.Or(err, unreadable)
		if since != nil {
			w.since = since(j.Name)
		}
		js := statusOf(j, cmp.Or(st, &statedir.State{}), w)
		js.Running, js.RunningSince, js.RunningCommand = store.Running(), w.run, store.Holder()
		if js.Drill != nil {
			js.Drill.Running = store.Drilling()
		}
		if err != nil {
			js.unreadable(err)
		}
		s.Jobs = append(s.Jobs, js)
		s.Late, s.Failed = s.Late || js.Late, s.Failed || js.Failed
	}
	return s
}

// statusTimes holds the times that the status of a job depends on, except those in its records.
type statusTimes struct {
	now   time.Time
	run   time.Time // start of the run in progress, zero if there is none
	since time.Time // when the schedule took effect, zero if unknown
	pause *decide.Pause
}

// longRun is how long a run in progress keeps its job from being late.
const longRun = 24 * time.Hour

func statusOf(j *replicate.Job, st *statedir.State, w statusTimes) *JobStatus {
	now := w.judgedAt()
	js := &JobStatus{Job: j.Name, Source: j.Source, Schedule: j.Schedule, State: Unknown, Problems: []*Problem{}, Datasets: []*DatasetStatus{}}
	if j.Standby {
		js.Standby, js.State, js.Schedule = true, OK, ""
		return js
	}
	due := deadline{now: now, grace: cmp.Or(time.Duration(j.Grace), defaultGrace) + time.Duration(j.Jitter), pause: w.pause, active: w.pause.State(w.now).Active()}
	if e, err := calendar.Parse(j.Schedule); err == nil { // "" is not a schedule
		due.event = e
		js.Next, _ = e.Next(w.now)
	}
	last := st.LastRun
	if last != nil {
		js.LastRun, js.Outcome, js.Error, js.Hint = last.Started, last.Outcome, last.Error, last.Hint
		js.Seconds, js.State = last.Ended.Sub(last.Started).Seconds(), stateOf(last.Outcome)
	}
	// A job with a schedule whose datasets never arrived is late: its timer may be missing.
	js.Late = due.event != nil && !due.active
	js.Pause, js.Windows = pauseStatusOf(w.pause, w.now), closedWindows(j, w.now)
	js.LagWarning, js.LagCritical = due.levels(now)
	if last == nil && len(st.Datasets) == 0 {
		due.neverRan(js, w.since)
	}
	var silent []string // datasets of a relay that get no new snapshots
	add := func(d *DatasetStatus, a *replicate.Attempt) {
		if proved, known := st.Datasets[d.Source].Consistent[cmp.Or(d.Base, d.Snapshot)]; known {
			d.Consistent = &proved
		}
		d.Success = a.Success
		d.Outcome, d.Error, d.Hint = outcomeOf(a, last)
		d.State = stateOf(d.Outcome)
		if t := j.DiskTarget(d.To); t != nil {
			judgeDisk(d, a, t, st.Disks[d.To], &due)
		} else {
			at := due.forTarget(j, d.To)
			if from := at.judge(d, a); d.Lag > js.Lag {
				js.Lag = d.Lag
				js.LagWarning, js.LagCritical = at.levels(from)
			}
		}
		if js.judgeReceived(d, j, st.Datasets[d.Source].Received, due.forTarget(j, d.To)) && !slices.Contains(silent, d.Source) {
			silent = append(silent, d.Source)
		}
		js.Datasets = append(js.Datasets, d)
	}
	for _, source := range slices.Sorted(maps.Keys(st.Datasets)) {
		known := st.Datasets[source]
		for _, h := range known.Histories {
			js.Untrusted += h.CountUntrusted()
		}
		if a := known.Local; a != nil {
			add(&DatasetStatus{Source: source, Snapshot: a.Snapshot}, &a.Attempt)
		}
		for _, target := range slices.Sorted(maps.Keys(known.Targets)) {
			a := known.Targets[target]
			if a.Lacks != "" {
				js.Lacking = append(js.Lacking, LackingCopy{To: target, Target: a.Target, Error: a.Lacks, Hint: a.LacksHint})
			}
			add(&DatasetStatus{Source: source, To: target, Target: a.Target, Base: a.Base, Bytes: a.Bytes, Seconds: a.Seconds}, &a.Attempt)
		}
	}
	js.Diverged, js.Orphans, js.Pools = divergedOf(j, st), orphansOf(j, st), poolsOf(j, st)
	if len(js.Datasets) > 0 {
		js.Late = slices.ContainsFunc(js.Datasets, func(d *DatasetStatus) bool { return d.Late })
	}
	js.Problems = problems(last, js.Datasets)
	js.Failed = len(js.Problems) > 0
	js.addDrills(drillStatusOf(j, st, w.now, w.pause))
	js.addDisks(disksOf(j, st, &due))
	js.judgeRuns(j, last, &due)
	js.addSilence(j, st, silent)
	js.Normalize()
	return js
}

// judgedAt returns the time at which lateness is judged: during a run its start, as the run brings
// what is due, unless it takes longer than longRun.
func (w statusTimes) judgedAt() time.Time {
	if !w.run.IsZero() && w.run.Before(w.now) && w.now.Sub(w.run) < longRun {
		return w.run
	}
	return w.now
}

// orphansOf returns the orphans of a job.
func orphansOf(j *replicate.Job, st *statedir.State) (all []OrphanStatus) {
	for _, g := range st.Orphans {
		s := OrphanStatus{Source: g.Source, To: g.Target, Target: g.Dataset, Since: g.Since}
		for i := range j.Targets {
			if j.Targets[i].Name == g.Target {
				s.Due = g.Due(&j.Targets[i])
			}
		}
		all = append(all, s)
	}
	return all
}

// outcomeOf returns the outcome of a dataset in the last run, with error and hint, or "" if it
// succeeded.
func outcomeOf(a *replicate.Attempt, last *statedir.Run) (ended, why, hint string) {
	if last != nil && a.Tried.Before(last.Started) {
		reached := slices.ContainsFunc(last.Targets, func(t *statedir.TargetRun) bool { return t.Outcome != "" })
		if last.Error != "" && !reached { // the run ended before it reached any target
			return last.Outcome, last.Error, last.Hint
		}
		return "", "", "" // nothing to send
	}
	if a.Error != "" && a.Outcome == "" { // a record of an older version
		return outcome.Failed, a.Error, a.Hint
	}
	return a.Outcome, a.Error, a.Hint
}

// unreadable marks the state of a job as unknown because of err.
func (j *JobStatus) unreadable(err error) {
	j.State, j.Late, j.Failed, j.Error, j.Hint = Unknown, false, true, err.Error(), fault.HintOf(err)
	if errors.Is(err, fs.ErrPermission) {
		j.Hint = "run it as root or as the job's user"
	}
	j.Problems = []*Problem{{State: Unknown, Error: j.Error, Hint: j.Hint}}
}

// problems returns the problems of the run, then of targets, datasets and pools.
func problems(last *statedir.Run, datasets []*DatasetStatus) []*Problem {
	all := []*Problem{}
	if last == nil {
		return all
	}
	if last.Error != "" {
		all = append(all, &Problem{State: worst(last.Outcome), Error: last.Error, Hint: last.Hint})
	}
	for _, t := range last.Targets {
		if t.Error != "" {
			all = merge(all, &Problem{State: worst(t.Outcome), To: []string{t.Target}, Error: t.Error, Hint: t.Hint, mergeKey: t.Error})
		}
	}
	whole := len(all)
	for _, d := range datasets {
		reported := func(p *Problem) bool { return p.Error == d.Error && (len(p.To) == 0 || slices.Contains(p.To, d.To)) }
		if d.Error == "" || slices.ContainsFunc(all[:whole], reported) {
			continue
		}
		p := &Problem{State: worst(d.Outcome), Datasets: []string{d.Source}, Error: strings.TrimPrefix(d.Error, d.Source+": "), Hint: d.Hint}
		if d.To != "" {
			p.To = []string{d.To}
		}
		// Messages that differ only in the dataset's name are one problem.
		p.mergeKey = strings.NewReplacer(d.Source, "", d.Target, "").Replace(d.Error) + "\n" + d.Hint
		all = append(all[:whole:whole], merge(all[whole:], p)...)
	}
	if len(all) == 0 && stateOf(last.Outcome) != OK { // a record of another version
		all = append(all, &Problem{State: outcome.Failed, Error: "the last run ended as " + last.Outcome})
	}
	for _, d := range last.Damaged {
		p := &Problem{State: Damaged, Error: d.Error, Hint: d.Hint}
		if d.Target != "" {
			p.To = []string{d.Target}
		}
		all = append(all, p)
	}
	return all
}

// merge adds p to an equal problem, or appends it.
func merge(all []*Problem, p *Problem) []*Problem {
	for _, q := range all {
		if q.mergeKey == p.mergeKey && q.State == p.State && p.mergeKey != "" {
			q.To, q.Datasets = union(q.To, p.To), union(q.Datasets, p.Datasets)
			return all
		}
	}
	return append(all, p)
}

func union(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}

// pauseStatusOf returns the pause in effect, or nil.
func pauseStatusOf(p *decide.Pause, now time.Time) *PauseStatus {
	if !p.State(now).Active() {
		return nil
	}
	return &PauseStatus{Since: p.Since, Until: p.Until, TransfersOnly: p.TransfersOnly, Reason: p.Reason, By: p.By, All: p.All, Forgotten: p.Forgotten(now)}
}

// closedWindows returns the targets with a closed bandwidth window.
func closedWindows(j *replicate.Job, now time.Time) (all []ClosedWindow) {
	for i := range j.Targets {
		w := &j.TransferTo(&j.Targets[i]).Settings
		if until, any := w.NextChange(now); any && w.ClosedAt(now) {
			all = append(all, ClosedWindow{To: j.Targets[i].Name, Until: until})
		}
	}
	return all
}
