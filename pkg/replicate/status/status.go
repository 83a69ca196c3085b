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
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/statedir"
)

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
		if since != nil {
			w.since = since(j.Name)
		}
		js := statusOf(j, cmp.Or(st, &statedir.State{}), w)
		js.Running, js.RunningSince, js.RunningCommand = store.Running(), w.run, store.Holder()
		if js.Drill != nil {
			js.Drill.Running = store.Drilling()
		}
		if err = cmp.Or(err, unreadable); err != nil {
			js.unreadable(err)
		}
		s.Jobs = append(s.Jobs, js)
		s.Late, s.Failed = s.Late || js.Late, s.Failed || js.Failed
	}
	return s
}

// unreadable marks the state of a job as unknown because of err.
func (j *JobStatus) unreadable(err error) {
	j.unread = err
	j.State, j.Late, j.Failed, j.Error, j.Hint = Unknown, false, true, err.Error(), fault.HintOf(err)
	j.Lag, j.LagWarning, j.LagCritical = 0, 0, 0
	if errors.Is(err, fs.ErrPermission) {
		j.Hint = "run it as root or as the job's user"
	}
	j.Problems = []*Problem{{State: Unknown, Error: j.Error, Hint: j.Hint}}
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

// judgedAt returns the time at which lateness is judged: during a run its start, as the run brings
// what is due, unless it takes longer than longRun.
func (w statusTimes) judgedAt() time.Time {
	if !w.run.IsZero() && w.run.Before(w.now) && w.now.Sub(w.run) < longRun {
		return w.run
	}
	return w.now
}

// statusOf returns the status of a job from its records, which another user may have written.
func statusOf(j *replicate.Job, st *statedir.State, w statusTimes) *JobStatus {
	if turned, err := jobfile.From(j, st.Place); err == nil { // otherwise the next run reports it
		j = turned
	}
	js := &JobStatus{Job: j.Name, Source: j.Source, State: Unknown, Datasets: []*DatasetStatus{}, of: j}
	js.Switched, js.Schedule = st.PlaceSince, j.Schedule
	due, last := newDeadline(j, w), st.LastRun
	if due.event != nil {
		js.Next, _ = due.event.Next(w.now)
	}
	if last != nil {
		js.LastRun, js.Outcome, js.Error, js.Hint = last.Started, last.Outcome, last.Error, last.Hint
		js.Seconds, js.State = last.Ended.Sub(last.Started).Seconds(), stateOf(last.Outcome)
	}
	// A job with a schedule whose datasets never arrived is late: its timer may be missing.
	js.Late = due.event != nil && !due.active
	js.Pause, js.Windows = pauseStatusOf(w.pause, w.now), closedWindows(j, w.now)
	js.LagWarning, js.LagCritical = due.levels(due.now)
	if last == nil && len(st.Datasets) == 0 {
		due.neverRan(js, w.since)
	}
	silent := js.addCopies(j, st, due)
	js.Diverged, js.Orphans, js.Pools = divergedOf(j, st), orphansOf(j, st), poolsOf(j, st)
	js.Problems = problems(last, js.Datasets)
	js.Failed = len(js.Problems) > 0
	js.addDrills(drillStatusOf(j, st, w.now, w.pause))
	js.addDisks(disksOf(j, st, due, js.Datasets))
	js.judgeRuns(j, last, due)
	js.addSilence(j, st, silent)
	js.Normalize()
	return js
}

// addCopies adds the datasets, and their lateness. It returns the datasets of a relay that get no new snapshots.
func (j *JobStatus) addCopies(of *replicate.Job, st *statedir.State, due *deadline) (silent []string) {
	last := st.LastRun
	add := func(d *DatasetStatus, a *replicate.Attempt) {
		known := st.Datasets[d.Source]
		if proved, known := known.Consistent[cmp.Or(d.Base, d.Snapshot)]; known {
			d.Consistent = &proved
		}
		d.Success = a.Success
		switch tried := last == nil || !a.Tried.Before(last.Started); {
		case tried && a.Error != "" && a.Outcome == "": // a record of an older version
			d.Outcome, d.Error, d.Hint, d.lastBytes = outcome.Failed, a.Error, a.Hint, d.Bytes
		case tried:
			d.Outcome, d.Error, d.Hint, d.lastBytes = a.Outcome, a.Error, a.Hint, d.Bytes
		case endedEarly(last):
			d.Outcome, d.Error, d.Hint = last.Outcome, last.Error, last.Hint
		}
		d.State = stateOf(d.Outcome)
		at := due.forTarget(of, d.To)
		if t := of.DiskTarget(d.To); t != nil {
			judgeDisk(d, a, t, st.Disks[d.To], due)
		} else if from := at.judge(d, a); d.Lag > j.Lag {
			j.Lag = d.Lag
			j.LagWarning, j.LagCritical = at.levels(from)
		}
		if j.judgeReceived(d, of, known.Received, at) && (len(silent) == 0 || silent[len(silent)-1] != d.Source) {
			silent = append(silent, d.Source)
		}
		j.Datasets = append(j.Datasets, d)
	}
	for _, source := range slices.Sorted(maps.Keys(st.Datasets)) {
		known := st.Datasets[source]
		for _, h := range known.Histories {
			j.Untrusted += h.CountUntrusted()
		}
		if a := known.Local; a != nil {
			add(&DatasetStatus{Source: source, Snapshot: a.Snapshot}, &a.Attempt)
		}
		for _, target := range slices.Sorted(maps.Keys(known.Targets)) {
			a := known.Targets[target]
			if target == "" { // no target has this name
				continue
			}
			if a.Lacks != "" {
				j.Lacking = append(j.Lacking, LackingCopy{To: target, Target: a.Target, Error: a.Lacks, Hint: a.LacksHint})
			}
			add(&DatasetStatus{Source: source, To: target, Target: a.Target, Base: a.Base, Bytes: a.Bytes, Seconds: a.Seconds}, &a.Attempt)
		}
	}
	if len(j.Datasets) > 0 {
		j.Late = slices.ContainsFunc(j.Datasets, func(d *DatasetStatus) bool { return d.Late })
	}
	return silent
}

// endedEarly reports whether a run ended before it reached any target, so that its error applies to all datasets.
func endedEarly(last *statedir.Run) bool {
	return last.Error != "" && !slices.ContainsFunc(last.Targets, func(t *statedir.TargetRun) bool { return t.Outcome != "" })
}

// problems returns the problems of the run, then of targets, datasets and pools.
func problems(last *statedir.Run, datasets []*DatasetStatus) []*Problem {
	if last == nil {
		return []*Problem{}
	}
	all := &problemSet{all: []*Problem{}, by: map[[2]string]*Problem{}, named: map[victim]bool{}}
	if last.Error != "" {
		all.add("", &Problem{State: Worst(last.Outcome), Error: last.Error, Hint: last.Hint})
	}
	ofTarget := map[[2]string]bool{} // reported errors of targets
	for _, t := range last.Targets {
		if t.Error != "" {
			all.add(t.Error, &Problem{State: Worst(t.Outcome), To: []string{t.Target}, Error: t.Error, Hint: t.Hint})
			ofTarget[[2]string{t.Target, t.Error}] = true
		}
	}
	clear(all.by) // an error of datasets is another problem
	for _, d := range datasets {
		if d.Error == "" || d.Error == last.Error || ofTarget[[2]string{d.To, d.Error}] {
			continue
		}
		p := &Problem{State: Worst(d.Outcome), Datasets: []string{d.Source}, Error: strings.TrimPrefix(d.Error, d.Source+": "), Hint: d.Hint}
		if d.To != "" {
			p.To = []string{d.To}
		}
		// Messages that differ only in the dataset's name are one problem.
		all.add(strings.NewReplacer(d.Source, "", d.Target, "").Replace(d.Error)+"\n"+d.Hint, p)
	}
	if len(all.all) == 0 && stateOf(last.Outcome) != OK { // a record of another version
		all.add("", &Problem{State: outcome.Failed, Error: "the last run ended as " + last.Outcome})
	}
	for _, d := range last.Damaged {
		p := &Problem{State: Damaged, Error: d.Error, Hint: d.Hint}
		if d.Target != "" {
			p.To = []string{d.Target}
		}
		all.add("", p)
	}
	return all.all
}

// problemSet collects problems. Problems with the same key and state become one. It takes time in proportion to their
// number, because the records of another user may have many.
type problemSet struct {
	all   []*Problem
	by    map[[2]string]*Problem // by key and state
	named map[victim]bool
}

// victim is a target or a dataset of a problem.
type victim struct {
	of     *Problem
	target bool
	name   string
}

// add adds a problem. With key "" it remains apart.
func (s *problemSet) add(key string, p *Problem) {
	to, datasets := p.To, p.Datasets
	if same := s.by[[2]string{key, p.State}]; same != nil && key != "" {
		p = same
	} else {
		p.To, p.Datasets = nil, nil
		s.all = append(s.all, p)
		s.by[[2]string{key, p.State}] = p
	}
	first := func(target bool, names []string) []string {
		return slices.DeleteFunc(names, func(name string) bool {
			v := victim{p, target, name}
			defer func() { s.named[v] = true }()
			return s.named[v]
		})
	}
	p.To, p.Datasets = append(p.To, first(true, to)...), append(p.Datasets, first(false, datasets)...)
}

// divergedOf returns the diverged copies that were renamed, with the commands that destroy them.
func divergedOf(j *replicate.Job, st *statedir.State) (out []DivergedStatus) {
	for _, d := range st.Diverged {
		s := DivergedStatus{DivergedCopy: d}
		if t := j.Target(d.Target); t != nil {
			if to, err := endpoint.Parse(t.To); err == nil {
				s.Destroy = remedy.Host{Name: to.Host, Shell: j.TransferTo(t).RSH}.Command("zfs", "destroy", "-r", d.As)
			}
		}
		out = append(out, s)
	}
	return out
}

// orphansOf returns the orphans of a job.
func orphansOf(j *replicate.Job, st *statedir.State) (all []OrphanStatus) {
	for _, g := range st.Orphans {
		s := OrphanStatus{Source: g.Source, To: g.Target, Target: g.Dataset, Since: g.Since}
		if t := j.Target(g.Target); t != nil {
			s.Due = g.Due(t)
		}
		all = append(all, s)
	}
	return all
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
