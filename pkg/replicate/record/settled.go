package record

import (
	"encoding/json"
	"os"

	"zxfer/pkg/replicate"
)

// settledVersion is raised when what Settled says is meant differently: what
// another version wrote is then forgotten.
const settledVersion = 1

// Settled are the datasets that the last run found nothing to do for, with all
// that this depended on. It saves work, and nothing else: without it, or with
// one that cannot be read, the next run looks at everything.
type Settled struct {
	Version int `json:"version"`
	// Job stands for the job's settings.
	Job string `json:"job"`
	// Datasets are those of the source, by name.
	Datasets map[string]*replicate.Settled `json:"datasets"`
}

// Settled reads what is settled under the job's settings; nothing where that
// was never written, under other settings, or is damaged.
func (s *Store) Settled(job string) *Settled {
	none := &Settled{Version: settledVersion, Job: job, Datasets: map[string]*replicate.Settled{}}
	text, err := os.ReadFile(s.file("settled.json"))
	if err != nil {
		return none
	}
	var found Settled
	if json.Unmarshal(text, &found) != nil || found.Version != settledVersion || found.Job != job || found.Datasets == nil {
		return none
	}
	for name, d := range found.Datasets {
		if d == nil {
			delete(found.Datasets, name)
		}
	}
	return &found
}

// SaveSettled replaces what is settled.
func (s *Store) SaveSettled(st *Settled) error {
	text, err := json.Marshal(st)
	if err != nil {
		return err
	}
	return Replace(s.file("settled.json"), append(text, '\n'), 0o640)
}
