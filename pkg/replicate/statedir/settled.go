package statedir

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"

	"zxfer/pkg/replicate"
)

// cacheVersion changes with the meaning of Settled. Other versions are ignored.
const cacheVersion = 1

// Settled is the cache. It only saves work: if it is missing or damaged, the next run checks all
// datasets.
type Settled struct {
	Version int `json:"version"`
	// Job is a hash of the job's settings.
	Job string `json:"job"`
	// Datasets are datasets of the source, by name.
	Datasets map[string]*replicate.UnchangedCache `json:"datasets"`
}

// Settled reads the cache. If it is missing, damaged, or has other job settings, it is empty.
func (s *Store) Settled(j *replicate.Job) *Settled {
	text, err := json.Marshal(j)
	if err != nil {
		return &Settled{} // no cache without a hash
	}
	sum := sha256.Sum256(text)
	st := &Settled{Version: cacheVersion, Job: hex.EncodeToString(sum[:]), Datasets: map[string]*replicate.UnchangedCache{}}
	var found Settled
	text, err = s.read("settled.json")
	if err == nil && json.Unmarshal(text, &found) == nil && found.Version == st.Version && found.Job == st.Job {
		maps.Copy(st.Datasets, found.Datasets)
		maps.DeleteFunc(st.Datasets, func(_ string, d *replicate.UnchangedCache) bool { return d == nil })
	}
	return st
}

// SaveSettled replaces the cache.
func (s *Store) SaveSettled(st *Settled) error { return s.save("settled.json", st) }
