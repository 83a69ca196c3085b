package fleet

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/runner"
)

// Schema names the shape of the JSON. Fields are only ever added.
const Schema = "zxfer.replicate.hosts/v1"

// Unreachable is the state of a host that did not say how its jobs stand.
const Unreachable = "unreachable"

// Fleet is how the jobs of many hosts stand.
type Fleet struct {
	Schema      string  `json:"schema"`
	Late        bool    `json:"late"`        // any job is
	Failed      bool    `json:"failed"`      // any job has
	Unreachable int     `json:"unreachable"` // hosts that did not say
	Hosts       []*Host `json:"hosts"`       // the worst first
	// NotAsked are patterns of hosts that the job file does not name.
	NotAsked []string `json:"not_asked,omitempty"`
}

// Host is how the jobs of one host stand, or why that is not known.
type Host struct {
	Host    string  `json:"host"`
	Address string  `json:"address,omitempty"` // by which it was asked, "" = it is this one
	State   string  `json:"state"`             // the worst of its jobs', or Unreachable
	Error   string  `json:"error,omitempty"`
	Hint    string  `json:"hint,omitempty"`
	Seconds float64 `json:"seconds"` // that it took to ask
	Jobs    []*Job  `json:"jobs"`    // the worst first
}

// Job is how a job of a host stands. Of its datasets it has those that are not well,
// of them and of its problems the first few.
type Job struct {
	*runner.JobStatus
	Copies int `json:"copies"` // pairs of a dataset and a target
	Well   int `json:"well"`   // of these
	// Oldest is when the copy arrived that arrived longest ago, zero where there is
	// none, or one never did.
	Oldest time.Time `json:"oldest,omitzero"`
}

// The most of each job that is kept.
const (
	maxDatasets = 100
	maxProblems = 20
)

// jobOf keeps of a job what is not well.
func jobOf(s *runner.JobStatus) *Job {
	j := &Job{JobStatus: s, Copies: len(s.Datasets)}
	never := false
	for _, d := range s.Datasets {
		if d.State == runner.OK {
			j.Well++
		}
		if never = never || d.Success.IsZero(); j.Oldest.IsZero() || d.Success.Before(j.Oldest) {
			j.Oldest = d.Success
		}
	}
	if never {
		j.Oldest = time.Time{}
	}
	s.Datasets = first(slices.DeleteFunc(s.Datasets, func(d *runner.DatasetStatus) bool { return d.State == runner.OK }), maxDatasets)
	s.Aside, s.Gone, s.Problems = first(s.Aside, maxDatasets), first(s.Gone, maxDatasets), first(s.Problems, maxProblems)
	for _, p := range s.Problems {
		p.Datasets, p.To = first(p.Datasets, maxProblems), first(p.To, maxProblems)
	}
	if s.Drill != nil {
		s.Drill.NotGood = first(s.Drill.NotGood, maxProblems)
	}
	return j
}

// first are the first few, without the memory of the others.
func first[T any](all []T, most int) []T { return slices.Clone(all[:min(len(all), most)]) }

// answered notes what a host said, and which of the jobs that it is to have it does not
// know.
func (h *Host) answered(s *runner.Status, expected []string) {
	for _, name := range expected {
		if !slices.ContainsFunc(s.Jobs, func(j *runner.JobStatus) bool { return j.Job == name }) {
			s.Jobs = append(s.Jobs, &runner.JobStatus{Job: name, State: runner.Unknown, Failed: true, Datasets: []*runner.DatasetStatus{},
				Problems: []*runner.Problem{{State: runner.Unknown, Error: "the host does not know this job: its job file is another", Hint: "bring this job file there; then, on it: zxfer replicate install"}}})
		}
	}
	h.State = runner.OK
	for _, j := range s.Jobs {
		h.Jobs = append(h.Jobs, jobOf(j))
		if rank(j.State) > rank(h.State) {
			h.State = j.State
		}
	}
	slices.SortStableFunc(h.Jobs, func(a, b *Job) int { return rank(b.State) - rank(a.State) })
}

// silent notes why a host said nothing.
func (h *Host) silent(err error) {
	h.State, h.Error, h.Hint = Unreachable, err.Error(), fault.HintOf(err)
}

// rank orders states, the worst highest.
func rank(state string) int {
	if state == Unreachable {
		return 2*runner.Rank(outcome.Refused) - 1 // behind what is known to have failed
	}
	return 2 * runner.Rank(state)
}

// sum sorts hosts and counts.
func (f *Fleet) sum() {
	slices.SortStableFunc(f.Hosts, func(a, b *Host) int { return rank(b.State) - rank(a.State) })
	for _, h := range f.Hosts {
		if h.State == Unreachable {
			f.Unreachable++
		}
		for _, j := range h.Jobs {
			f.Late, f.Failed = f.Late || j.Late, f.Failed || j.Failed
		}
	}
}

// Shorten leaves out the hosts and jobs that are well.
func (f *Fleet) Shorten() {
	f.Hosts = slices.DeleteFunc(f.Hosts, func(h *Host) bool { return h.State == runner.OK })
	for _, h := range f.Hosts {
		h.Jobs = slices.DeleteFunc(h.Jobs, func(j *Job) bool { return j.State == runner.OK })
	}
}

// Counts are how many hosts there are of each state, the worst first.
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

// Wrong is why not all is well, nil where it is.
func (f *Fleet) Wrong() error {
	switch {
	case f.Failed || f.Late:
		return fault.Failf("", "a job is late, or failed")
	case f.Unreachable > 0:
		return fault.Failf("", "a host did not say how its jobs stand")
	}
	return nil
}

// errAnother is of a host that says it is another.
var errAnother = errors.New("another host answered")

// known is the name of a host for messages.
func known(a Asked) string { return cmp.Or(a.Name, a.Address) }
