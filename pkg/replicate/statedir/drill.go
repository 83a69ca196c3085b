package statedir

import (
	"maps"
	"slices"
	"time"

	"zxfer/pkg/outcome"
)

// Drill is a line of the log of drills.
type Drill struct {
	Job     string         `json:"job"`
	Source  string         `json:"source"`
	Started time.Time      `json:"started"`
	Ended   time.Time      `json:"ended"`
	Outcome string         `json:"outcome"` // outcome.Done, Failed, Refused or Interrupted, or NotFinished or Unverified
	Error   string         `json:"error,omitempty"`
	Hint    string         `json:"hint,omitempty"`
	Seed    uint64         `json:"seed,string"` // selects the files of a sample; a string, because JSON numbers lose digits
	Copies  []*DrillResult `json:"copies"`
	Notes   []string       `json:"notes,omitempty"`
}

// DrillResult is the result of a drill for one copy.
type DrillResult struct {
	Source   string `json:"source"` // dataset
	To       string `json:"to"`     // name of the target
	Target   string `json:"target"` // name of the copy
	Snapshot string `json:"snapshot,omitempty"`
	Outcome  string `json:"outcome"` // outcome.Done = good
	// Read is "files" or "stream", or "" if nothing was read.
	Read string `json:"read,omitempty"`
	// Compared means that the copy was compared with the source. If it was not, Note has the
	// reason.
	Compared bool    `json:"compared"`
	Sample   float64 `json:"sample,omitempty"` // fraction of the files, 1 = all
	Files    uint64  `json:"files,omitempty"`  // read
	Bytes    uint64  `json:"bytes,omitempty"`
	Seconds  float64 `json:"seconds"`
	Command  string  `json:"command,omitempty"` // "passed" or "failed"
	// Output is the end of the command's output.
	Output string `json:"output,omitempty"`
	// Differ lists the first paths that differ from the source or cannot be read.
	Differ []string `json:"differ,omitempty"`
	Note   string   `json:"note,omitempty"`
	Error  string   `json:"error,omitempty"`
	Hint   string   `json:"hint,omitempty"`
}

// DrillState is the knowledge about a job's drills after the last one.
type DrillState struct {
	Last *Drill `json:"last,omitempty"` // without its copies
	// LastComplete is the start of the last complete drill. Copies that it did not check are newer.
	LastComplete time.Time `json:"whole,omitzero"`
	// Copies is keyed by source dataset and target name.
	Copies map[string]map[string]*DrilledCopy `json:"copies"`
}

// DrilledCopy is the knowledge about one copy.
type DrilledCopy struct {
	Good time.Time `json:"good,omitzero"` // start of the last drill that found the copy good
	// Failing is the start of the first drill since Good that did not find the copy good, or zero.
	Failing time.Time `json:"failing_since,omitzero"`
	DrillResult
}

// DisplayOutcome returns the outcome of a copy for display.
func (c *DrillResult) DisplayOutcome() string {
	switch c.Outcome {
	case outcome.Done:
		return "good"
	case outcome.Failed:
		return "NOT GOOD"
	}
	return c.Outcome
}

// Record records a drill. Copies that it did not check keep their state, but a complete drill drops
// them.
func (s *DrillState) Record(d *Drill) {
	brief := *d
	brief.Copies = nil
	s.Last = &brief
	known := s.Copies
	whole := d.Error == "" && d.Outcome != outcome.Interrupted
	if whole {
		s.LastComplete = d.Started
	}
	if whole || s.Copies == nil {
		s.Copies = map[string]map[string]*DrilledCopy{}
	}
	for _, c := range d.Copies {
		now := &DrilledCopy{DrillResult: *c}
		if was := known[c.Source][c.To]; was != nil {
			now.Good, now.Failing = was.Good, was.Failing
		}
		if c.Outcome == outcome.Done {
			now.Good, now.Failing = d.Started, time.Time{}
		} else if now.Failing.IsZero() || now.Failing.After(d.Started) { // or the clock was wrong
			now.Failing = d.Started
		}
		if s.Copies[c.Source] == nil {
			s.Copies[c.Source] = map[string]*DrilledCopy{}
		}
		s.Copies[c.Source][c.To] = now
	}
}

// All calls f for each copy, sorted by source and target.
func (s *DrillState) All(f func(c *DrilledCopy)) {
	for _, source := range slices.Sorted(maps.Keys(s.Copies)) {
		for _, to := range slices.Sorted(maps.Keys(s.Copies[source])) {
			f(s.Copies[source][to])
		}
	}
}
