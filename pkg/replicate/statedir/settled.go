package statedir

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"

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
	Datasets map[string]*replicate.UnchangedCache `json:"datasets"`
}

// Settled reads what is settled under the settings of a job; nothing where that
// was never written, under other settings, or is damaged.
func (s *Store) Settled(j *replicate.Job) *Settled {
	text, err := json.Marshal(j)
	if err != nil {
		return &Settled{} // under no name is anything settled
	}
	sum := sha256.Sum256(text)
	st := &Settled{Version: settledVersion, Job: hex.EncodeToString(sum[:]), Datasets: map[string]*replicate.UnchangedCache{}}
	var found Settled
	text, err = s.read("settled.json")
	if err == nil && json.Unmarshal(text, &found) == nil && found.Version == st.Version && found.Job == st.Job {
		maps.Copy(st.Datasets, found.Datasets)
		maps.DeleteFunc(st.Datasets, func(_ string, d *replicate.UnchangedCache) bool { return d == nil })
	}
	return st
}

// SaveSettled replaces what is settled.
func (s *Store) SaveSettled(st *Settled) error { return s.save("settled.json", st) }
