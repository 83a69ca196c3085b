package statedir

import (
	"encoding/json"
	"errors"
	"time"
)

// Mailed records the mail about a job's runs.
type Mailed struct {
	Run     time.Time `json:"run"`         // start of the last run that was considered
	At      time.Time `json:"at,omitzero"` // of the last mail
	Failing bool      `json:"failing"`     // a failure was reported, and no success since
}

// Mailed reads the record. It is empty before the first mail, or if it is damaged: then a failure
// is reported again.
func (s *Store) Mailed() (*Mailed, error) {
	m := &Mailed{}
	err := s.load("mail.json", m, "")
	var damaged *damagedError
	if errors.As(err, &damaged) {
		return &Mailed{}, nil
	}
	return m, err
}

// SaveMailed replaces the record. Root's unit writes it for the jobs of other users, which may read
// it.
func (s *Store) SaveMailed(m *Mailed) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return Replace(s.file("mail.json"), append(text, '\n'), 0o644)
}

// LastRun returns the last run in the log that was not skipped, or nil.
func (s *Store) LastRun() (last *Run, err error) {
	skipped := 0
	err = entries(s, runLog, func(r *Run) bool {
		if !r.Skipped {
			last = r
			return false
		}
		skipped++
		return skipped < maxSkipped
	})
	return last, err
}

// maxSkipped bounds the skipped runs that LastRun looks through.
const maxSkipped = 1000
