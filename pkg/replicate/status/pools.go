package status

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/statedir"
)

// PoolStatus holds the data errors of a pool of a job, as the last runs recorded them. Each host
// answers only for its own pool.
type PoolStatus struct {
	To   string `json:"to,omitempty"` // the target's name in the job file, "" = the source
	Pool string `json:"pool"`
	// State is OK, Damaged, or Unknown if the last query failed. Damaged pools whose host does not
	// answer remain Damaged.
	State   string    `json:"state"`
	Checked time.Time `json:"checked,omitzero"`  // start of the last run that got an answer
	Unknown string    `json:"unknown,omitempty"` // why the last query failed
	Errors  uint64    `json:"errors,omitempty"`
	// Repair states whether copies of the job can repair the errors: "yes", "partly", "no" or
	// "unknown". Why has the reason if the answer is not "yes".
	Repair string   `json:"repair,omitempty"`
	Copies []string `json:"copies,omitempty"` // to repair from
	Why    string   `json:"why,omitempty"`
}

// poolsOf returns the state of a job's pools, the source's first. Records of earlier versions have
// no pools without errors.
func poolsOf(j *replicate.Job, st *statedir.State) (all []*PoolStatus) {
	names := []string{""}
	for i := range j.Targets {
		names = append(names, j.Targets[i].Name)
	}
	for _, to := range names {
		var s *PoolStatus
		if p := st.Pools[to]; p != nil {
			s = &PoolStatus{To: to, Pool: p.Name, State: OK, Checked: p.Checked, Unknown: p.Unknown}
			if p.Unknown != "" || p.Checked.IsZero() {
				s.State = Unknown
			}
		}
		if st.LastRun != nil {
			if i := slices.IndexFunc(st.LastRun.Damaged, func(d *statedir.Damage) bool { return d.Target == to }); i >= 0 {
				d := st.LastRun.Damaged[i]
				s = cmp.Or(s, &PoolStatus{To: to, Pool: d.Pool})
				s.State, s.Errors, s.Repair, s.Copies, s.Why = Damaged, d.Errors, d.Repair, d.Copies, d.Why
			}
		}
		if s != nil {
			all = append(all, s)
		}
	}
	return all
}

// DiskStatus is the state of a disk that comes and goes, as the last run saw it.
type DiskStatus struct {
	To    string    `json:"to"` // the target's name: that in the job file, "-", and the disk's label
	Pool  string    `json:"pool"`
	GUID  uint64    `json:"guid,string"`
	State string    `json:"state"` // as in decide.DiskState
	Since time.Time `json:"since,omitzero"`
	// Seen is the start of the last run that used the disk, or zero.
	Seen time.Time `json:"seen,omitzero"`
	// Late reports that the age of a copy on the disk exceeds the disk's limit.
	Late bool `json:"late"`
	// LateAfter is when that happens, or happened, to the oldest copy; zero = never.
	LateAfter time.Time `json:"late_after,omitzero"`
	Scrubbed  time.Time `json:"scrubbed,omitzero"`
	// Removable reports that the disk may be removed until the next run.
	Removable bool   `json:"removable,omitempty"`
	Reason    string `json:"reason,omitempty"` // why the last run could not use or release it
}

// disksOf returns the state of a job's disks. While the job is paused, none is late.
func disksOf(j *replicate.Job, st *statedir.State, due *deadline, datasets []*DatasetStatus) (all []*DiskStatus) {
	for i := range j.Targets {
		t := &j.Targets[i]
		if t.Disk == nil {
			continue
		}
		id := t.Identity()
		s := &DiskStatus{To: t.Name, Pool: id.Pool, GUID: id.GUID, State: Unknown}
		all = append(all, s)
		d := st.Disks[t.Name]
		if d == nil || d.GUID != id.GUID { // no run since the disk was added
			continue
		}
		s.State, s.Since, s.Seen, s.Scrubbed, s.Reason = string(d.State), d.Since, d.Seen, d.Scrubbed, d.Reason
		s.Removable = d.State == decide.DiskRemovable
		for _, c := range datasets {
			if c.To == t.Name && (s.LateAfter.IsZero() || c.LateAfter.Before(s.LateAfter)) {
				s.LateAfter = c.LateAfter
			}
		}
		if s.LateAfter.IsZero() { // without copies, or never
			s.LateAfter = d.LateAfter(t.Disk.Late, time.Time{}, due.now)
		}
		s.Late = !s.LateAfter.IsZero() && due.now.After(s.LateAfter) && !due.active
	}
	return all
}

// judgeDisk sets the lag of a copy on a disk by the disk's limit, regardless of the schedule.
func judgeDisk(s *DatasetStatus, a *replicate.Attempt, t *replicate.Target, d *replicate.DiskState, due *deadline) {
	if d == nil {
		return
	}
	if s.LateAfter = d.LateAfter(t.Disk.Late, a.Success, due.now); s.LateAfter.IsZero() {
		return
	}
	if s.Late = due.now.After(s.LateAfter) && !due.active; s.Late {
		s.Lag, s.State = due.now.Sub(s.LateAfter).Seconds(), Worst(s.State, Late)
	}
}

// addDisks adds the state of the disks to the job's status.
func (j *JobStatus) addDisks(disks []*DiskStatus) {
	j.Disks = disks
	for _, d := range disks {
		if !d.Late {
			continue
		}
		j.Late = true
		why := "the disk (pool " + d.Pool + ") is " + d.State
		if d.Since.IsZero() || d.Seen.IsZero() {
			why += ", and no run has ever used it"
		} else {
			why += " since " + d.Since.Local().Format(time.DateTime)
		}
		j.Problems = append(j.Problems, &Problem{State: Late, To: []string{d.To}, Error: fmt.Sprintf("%s; its copies are late", why),
			Hint: "attach the disk; if there is no schedule: zxfer replicate run " + j.Job})
	}
}

// judgeRuns makes a job late that no longer runs, and whose targets are all on disks: the age of their copies does
// not show that.
func (j *JobStatus) judgeRuns(of *replicate.Job, last *statedir.Run, due *deadline) {
	scheduled := slices.ContainsFunc(of.Targets, func(t replicate.Target) bool { return t.Disk == nil })
	if len(of.Targets) == 0 || scheduled || last == nil || due.active || due.future(last.Started) {
		return
	}
	at, _ := due.after(due.pause.DueFrom(last.Started, due.now))
	if at.IsZero() || !due.now.After(at.Add(due.grace)) {
		return
	}
	j.Late = true
	j.Problems = append(j.Problems, &Problem{State: Late, Error: "no run since " + last.Started.Local().Format(time.DateTime),
		Hint: "check that its timer is active: systemctl list-timers"})
}
