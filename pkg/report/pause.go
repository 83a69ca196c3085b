package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/status"
)

// Pauses returns the pause of a job, and the targets to which a bandwidth window of 0 stops
// transfers.
func Pauses(j *status.JobStatus, stamp func(time.Time) string) (facts []string) {
	if j.Pause != nil {
		facts = append(facts, shorten(oneLine(j.Pause.Text(stamp)), 2*decide.MaxReason))
	}
	for _, w := range j.Windows {
		facts = append(facts, fmt.Sprintf("no transfers to %s until %s (bandwidth_window)", oneLine(w.To), stamp(w.Until)))
	}
	return facts
}

// Warnings describes the conditions of a job that are a warning, and do not change its state.
func Warnings(j *status.JobStatus) (facts []string) {
	if j.Pause != nil && j.Pause.Forgotten {
		facts = append(facts, Pauses(j, stamp)[0])
	}
	if n := len(j.Lacking); n > 0 {
		facts = append(facts, fmt.Sprintf("%s of the source", english.Plural(n, "copy lacks properties", "copies lack properties")))
	}
	if n := j.Inconsistent(); n > 0 {
		facts = append(facts, english.Plural(n, "copy", "copies")+" not consistent")
	}
	for _, p := range j.SilentPools() {
		facts = append(facts, "data errors of pool "+oneLine(p.Pool)+" unknown since "+stamp(p.Checked))
	}
	return facts
}

// pausedJobs counts paused jobs, and lists them with their pauses.
func pausedJobs(jobs []summarizedJob) (count string, lines []string) {
	jobs = slices.DeleteFunc(slices.Clone(jobs), func(j summarizedJob) bool { return j.Pause == nil })
	if len(jobs) == 0 {
		return "", nil
	}
	for _, j := range jobs {
		lines = append(lines, j.Job+": "+strings.Join(Pauses(j.JobStatus, stamp), ", "))
	}
	return fmt.Sprintf(", %d paused", len(jobs)), lines
}
