package statedir

import (
	"encoding/json"
	"path/filepath"
	"time"
)

// ScheduleStart is when a schedule of a job took effect.
type ScheduleStart struct {
	Schedule string    `json:"schedule"`
	Since    time.Time `json:"since"`
}

// schedules is the file with the starts of schedules, by job.
const schedules = "schedules.json"

// ScheduleStarts returns the recorded starts of schedules by job. A missing or damaged record has no starts.
func ScheduleStarts(stateDir string) map[string]ScheduleStart {
	found := map[string]ScheduleStart{}
	if All(stateDir).load(schedules, &found, "") != nil || found == nil {
		return map[string]ScheduleStart{}
	}
	return found
}

// SaveScheduleStarts replaces the record. It creates no directory.
func SaveScheduleStarts(stateDir string, starts map[string]ScheduleStart) error {
	text, err := json.Marshal(starts)
	if err != nil {
		return err
	}
	return Replace(filepath.Join(stateDir, schedules), append(text, '\n'), 0o644)
}
