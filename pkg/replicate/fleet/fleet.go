package fleet

import (
	"slices"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/remedy"
	"zxfer/pkg/replicate/status"
)

// Schema is the version of the JSON format. New versions only add fields.
const Schema = "zxfer.replicate.hosts/v1"

// Fleet is the status of the jobs of many hosts.
type Fleet struct {
	Schema      string  `json:"schema"`
	Late        bool    `json:"late"`        // any job is late
	Failed      bool    `json:"failed"`      // any job failed
	Unreachable int     `json:"unreachable"` // number of unreachable hosts
	Hosts       []*Host `json:"hosts"`       // worst first
	// NotAsked are host patterns of the job file: their hosts are unknown.
	NotAsked []string `json:"not_asked,omitempty"`
}

// Host is the status of one host, or the error of the query.
type Host struct {
	Host    string  `json:"host"`
	Address string  `json:"address,omitempty"` // "" = the local host
	State   string  `json:"state"`             // worst state of a job, or status.Unreachable
	Error   string  `json:"error,omitempty"`
	Hint    string  `json:"hint,omitempty"`
	Seconds float64 `json:"seconds"` // duration of the query
	Jobs    []*Job  `json:"jobs"`    // worst first
}

// Job is the status of a job. It only has the first datasets that are not ok, and the first
// problems.
type Job struct {
	*status.JobStatus
	Copies int `json:"copies"` // number of pairs of a dataset and a target
	Well   int `json:"well"`   // number of Copies that are ok
	// Oldest is the oldest last success of a copy. It is zero if there are no copies, or one never
	// succeeded.
	Oldest time.Time `json:"oldest,omitzero"`
}

// setStatus records the status of a host. It adds expected jobs that the host does not know, with
// state Unknown.
func (h *Host) setStatus(s *status.Status, expected []string) {
	for _, name := range expected {
		if !slices.ContainsFunc(s.Jobs, func(j *status.JobStatus) bool { return j.Job == name }) {
			j := &status.JobStatus{Job: name, State: status.Unknown, Datasets: []*status.DatasetStatus{}}
			j.Failed, j.Problems = true, []*status.Problem{{State: status.Unknown, Error: "the host's job file lacks this job", Hint: "copy this job file there, then: " + remedy.Host{Name: h.Address}.Command("zxfer", "replicate", "install")}}
			s.Jobs = append(s.Jobs, j)
		}
	}
	h.State = status.OK
	for _, j := range s.Jobs {
		h.Jobs = append(h.Jobs, jobOf(j))
		h.State = status.Worst(h.State, j.State)
	}
	slices.SortStableFunc(h.Jobs, func(a, b *Job) int { return status.Rank(b.State) - status.Rank(a.State) })
}

// setError records the error of a query.
func (h *Host) setError(err error) {
	h.State, h.Error, h.Hint = status.Unreachable, err.Error(), fault.HintOf(err)
}

// Limits of the details of a job.
const (
	maxDatasets = 100
	maxProblems = 20
)

// jobOf returns the status of a job, shortened to what is not ok.
func jobOf(s *status.JobStatus) *Job {
	sum := status.Summarize(s)
	j := &Job{JobStatus: s, Copies: sum.Copies, Well: sum.Healthy}
	never := false
	for _, d := range s.Datasets {
		if never = never || d.Success.IsZero(); j.Oldest.IsZero() || d.Success.Before(j.Oldest) {
			j.Oldest = d.Success
		}
	}
	if never {
		j.Oldest = time.Time{}
	}
	s.Datasets = first(slices.DeleteFunc(s.Datasets, func(d *status.DatasetStatus) bool {
		return d.State == status.OK && (d.Consistent == nil || *d.Consistent)
	}), maxDatasets)
	s.Lacking = first(s.Lacking, maxProblems)
	s.Diverged, s.Orphans, s.Problems = first(s.Diverged, maxDatasets), first(s.Orphans, maxDatasets), first(s.Problems, maxProblems)
	for _, p := range s.Problems {
		p.Datasets, p.To = first(p.Datasets, maxProblems), first(p.To, maxProblems)
	}
	if s.Drill != nil {
		s.Drill.NotGood = first(s.Drill.NotGood, maxProblems)
	}
	return j
}

// first copies the first elements, so that the others can be freed.
func first[T any](all []T, most int) []T { return slices.Clone(all[:min(len(all), most)]) }

// summarize sorts the hosts and sets the totals.
func (f *Fleet) summarize() {
	slices.SortStableFunc(f.Hosts, func(a, b *Host) int { return status.Rank(b.State) - status.Rank(a.State) })
	for _, h := range f.Hosts {
		if h.State == status.Unreachable {
			f.Unreachable++
		}
		for _, j := range h.Jobs {
			f.Late, f.Failed = f.Late || j.Late, f.Failed || j.Failed
		}
	}
}

// Summary returns the summary of the jobs of all hosts.
func (f *Fleet) Summary() *status.Summary {
	var all []*Job
	for _, h := range f.Hosts {
		all = append(all, h.Jobs...)
	}
	return Summarize(all...)
}

// Summarize returns the summary of jobs. It includes copies that the jobs do not list.
func Summarize(jobs ...*Job) *status.Summary {
	var all []*status.JobStatus
	copies, well := 0, 0
	for _, j := range jobs {
		all, copies, well = append(all, j.JobStatus), copies+j.Copies, well+j.Well
	}
	s := status.Summarize(all...)
	s.Copies, s.Healthy = copies, well
	return s
}

// Severity returns the worst severity of the jobs and hosts.
func (f *Fleet) Severity() status.Severity {
	worst := status.SeverityOK
	for _, h := range f.Hosts {
		all := []status.Severity{status.SeverityOf(h.State)}
		for _, j := range h.Jobs {
			all = append(all, j.Severity())
		}
		worst = status.WorstSeverity(append(all, worst)...)
	}
	return worst
}

// Shorten removes hosts and jobs that are ok.
func (f *Fleet) Shorten() {
	f.Hosts = slices.DeleteFunc(f.Hosts, func(h *Host) bool { return h.State == status.OK })
	for _, h := range f.Hosts {
		h.Jobs = slices.DeleteFunc(h.Jobs, func(j *Job) bool { return j.State == status.OK })
	}
}

// Counts returns the states that occur, worst first, and the number of hosts in each.
func (f *Fleet) Counts() (states []string, hosts map[string]int) {
	hosts = map[string]int{}
	for _, h := range f.Hosts {
		if hosts[h.State] == 0 {
			states = append(states, h.State)
		}
		hosts[h.State]++
	}
	return states, hosts
}

// Err returns an error if any job failed or is late, or any host is unreachable.
func (f *Fleet) Err() error {
	switch {
	case f.Failed || f.Late:
		return fault.Failf("", "a job is late or failed")
	case f.Unreachable > 0:
		return fault.Failf("", "a host did not report the status of its jobs")
	}
	return nil
}
