package statedir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
)

// Drill is one drill of a job: a line of its log.
type Drill struct {
	Job     string        `json:"job"`
	Source  string        `json:"source"`
	Started time.Time     `json:"started"`
	Ended   time.Time     `json:"ended"`
	Outcome string        `json:"outcome"` // outcome's Done, Failed, Refused or Interrupted, or Unproved
	Error   string        `json:"error,omitempty"`
	Hint    string        `json:"hint,omitempty"`
	Seed    uint64        `json:"seed,string"` // which files a sample takes; a string, as other numbers would lose digits
	Copies  []*DrilledRun `json:"copies"`
	Notes   []string      `json:"notes,omitempty"`
}

// Unproved is the outcome of a copy that may be good, and nobody can tell: its key was
// not there, say, or no clone could be made.
const Unproved = "not proved"

// DrilledRun is a drill's part for one copy.
type DrilledRun struct {
	Source   string `json:"source"` // the dataset
	To       string `json:"to"`     // the target's name in the job file
	Target   string `json:"target"` // the dataset there
	Snapshot string `json:"snapshot,omitempty"`
	Outcome  string `json:"outcome"` // Done: it is good
	// Read is what was read of it: "files" or "stream", "" where nothing was.
	Read string `json:"read,omitempty"`
	// Compared tells that it was compared with the source; why not is in Note.
	Compared bool    `json:"compared"`
	Sample   float64 `json:"sample,omitempty"` // of the files, 1 = all
	Files    uint64  `json:"files,omitempty"`  // that were read
	Bytes    uint64  `json:"bytes,omitempty"`
	Seconds  float64 `json:"seconds"`
	Command  string  `json:"command,omitempty"` // "passed" or "failed"
	// Output is the end of what the command said.
	Output string `json:"output,omitempty"`
	// Differ are paths that differ from the source, or cannot be read; the first of them.
	Differ []string `json:"differ,omitempty"`
	Note   string   `json:"note,omitempty"`
	Error  string   `json:"error,omitempty"`
	Hint   string   `json:"hint,omitempty"`
}

// Drills is what is known of a job's drills after the last one.
type Drills struct {
	Last *Drill `json:"last,omitempty"` // without its copies
	// Whole is the begin of the last drill that came to its end: what it had no copy of is
	// newer.
	Whole time.Time `json:"whole,omitzero"`
	// Copies are by dataset of the source and target's name.
	Copies map[string]map[string]*Drilled `json:"copies"`
}

// Drilled is what is known of one copy.
type Drilled struct {
	Good time.Time `json:"good,omitzero"` // begin of the last drill that proved it good
	// Failing is the begin of the first drill since that did not, none where that did.
	Failing time.Time `json:"failing_since,omitzero"`
	DrilledRun
}

// Conclude makes the drill's outcome of those of its copies, and of an error of the whole.
func (d *Drill) Conclude(ended time.Time, err error, stopped bool) {
	d.Ended, d.Outcome = ended, outcome.Done
	has := func(ended string) bool {
		return slices.ContainsFunc(d.Copies, func(c *DrilledRun) bool { return c.Outcome == ended })
	}
	if err != nil {
		d.Outcome, d.Error, d.Hint = outcome.Of(err), err.Error(), fault.HintOf(err)
	}
	switch {
	case has(outcome.Failed): // which nothing else hides
		d.Outcome = outcome.Failed
	case stopped, err == nil && has(outcome.Interrupted):
		d.Outcome = outcome.Interrupted
	case err == nil && has(Unproved):
		d.Outcome = Unproved
	}
}

// Verdict is the drill as an error, err that of the whole: nil where all copies are good.
func (d *Drill) Verdict(err error) error {
	var errs []error
	if err != nil {
		errs = append(errs, OfJob(fmt.Errorf("job %q: %w", d.Job, err)))
	}
	for _, c := range d.Copies {
		if c.Outcome != outcome.Done {
			errs = append(errs, fault.Failf(c.Hint, "job %q: %s: %s of %s is %s: %s", d.Job, c.To, c.Target, c.Source, c.Standing(), c.Error))
		}
	}
	err = outcome.Join(errs...)
	if d.Outcome == outcome.Interrupted {
		return fault.Interrupt("the same command begins the drill anew", err)
	}
	return err
}

// FirstError is why not all is good, "" where it is.
func (d *Drill) FirstError() string {
	if d.Error != "" {
		return d.Error
	}
	for _, c := range d.Copies {
		if c.Outcome != outcome.Done {
			return c.To + ": " + c.Target + " is " + c.Standing() + ": " + c.Error
		}
	}
	return ""
}

// Standing is the copy's outcome in a word for people.
func (c *DrilledRun) Standing() string {
	switch c.Outcome {
	case outcome.Done:
		return "good"
	case outcome.Failed:
		return "NOT GOOD"
	}
	return c.Outcome
}

// Note takes a drill over. Copies that it did not come to stay as they were, unless
// the job has them no more, of which a drill that came to its end tells.
func (s *Drills) Note(d *Drill) {
	brief := *d
	brief.Copies = nil
	s.Last = &brief
	known := s.Copies
	whole := d.Error == "" && d.Outcome != outcome.Interrupted
	if whole {
		s.Whole = d.Started
	}
	if whole || s.Copies == nil {
		s.Copies = map[string]map[string]*Drilled{}
	}
	for _, c := range d.Copies {
		now := &Drilled{DrilledRun: *c}
		if was := known[c.Source][c.To]; was != nil {
			now.Good, now.Failing = was.Good, was.Failing
		}
		if c.Outcome == outcome.Done {
			now.Good, now.Failing = d.Started, time.Time{}
		} else if now.Failing.IsZero() || now.Failing.After(d.Started) { // or the clock was wrong then
			now.Failing = d.Started
		}
		if s.Copies[c.Source] == nil {
			s.Copies[c.Source] = map[string]*Drilled{}
		}
		s.Copies[c.Source][c.To] = now
	}
}

// All calls f for each copy, in order.
func (s *Drills) All(f func(c *Drilled)) {
	for _, source := range slices.Sorted(maps.Keys(s.Copies)) {
		for _, to := range slices.Sorted(maps.Keys(s.Copies[source])) {
			f(s.Copies[source][to])
		}
	}
}

// Drills reads what is known of the job's drills; nothing where there was none.
func (s *Store) Drills() (*Drills, error) {
	d := &Drills{}
	text, err := s.read("drills.json")
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fault.Failf("move it away: the next drill writes it anew", "%s is damaged: %w", s.file("drills.json"), err)
	}
	for source, of := range d.Copies {
		maps.DeleteFunc(of, func(_ string, c *Drilled) bool { return c == nil })
		for to, c := range of { // its directory may be a user's: one copy has one name
			c.Source, c.To = source, to
		}
	}
	return d, nil
}

// SaveDrill replaces what is known, and adds the drill to the log.
func (s *Store) SaveDrill(d *Drill, known *Drills) error {
	return errors.Join(s.append("drills.jsonl", d), s.save("drills.json", known))
}

// LockDrill makes sure that a job is drilled once at a time. Its runs go on meanwhile: a
// drill has a clone, whose snapshot ZFS lets nobody destroy.
func (s *Store) LockDrill(ctx context.Context) (unlock func(), err error) {
	return s.lock(ctx, "drill.lock", false)
}

// Standing reads the state of the job, and what is known of its drills.
func (s *Store) Standing() (*State, error) {
	st, err := s.State()
	if err != nil {
		return nil, err
	}
	d, err := s.Drills()
	if err != nil {
		return nil, err
	}
	st.Drills = *d
	return st, nil
}
